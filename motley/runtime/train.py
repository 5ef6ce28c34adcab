"""`motley.train`: any module and any data, without a recipe file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.utils.data import Dataset as TorchDataset

from motley.client.problems import make_problem
from motley.core.errors import DataError, InputError, MotleyError, RecipeError, UnknownNameError
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import PARTS, Composable, Method, Part, compose
from motley.core.problem import Problem
from motley.core.types import Data
from motley.data.adapters import as_tensor, from_arrays, from_clients, from_torch
from motley.data.dataset import Dataset
from motley.data.datasets import load as load_dataset
from motley.data.federated import FederatedData
from motley.data.own_tests import with_tests
from motley.data.partitions.lists import from_lists
from motley.data.reading import items
from motley.fleet.fleet import Fleet
from motley.nets.zoo import drawn
from motley.runtime.experiment import GIVEN as GIVEN_IN_PYTHON
from motley.runtime.experiment import Given, server_samples, share_out
from motley.runtime.launch import Listening, Result, has_checkpoint, launch
from motley.runtime.progress_line import Progress, progress_listeners
from motley.runtime.recipe import Recipe, load

T = TypeVar("T")

Model = nn.Module | Network | Callable[[], nn.Module] | str
GIVEN = ("data", "model", "method", "fleet")
"""Keys of a recipe that `train` takes as objects."""


def train(
    model: Model,
    data: Any,
    *,
    test: Any = None,
    method: str | Composable | Sequence[Composable] = "fedavg",
    clients: int = 20,
    partition: str | Sequence[Any] = "iid",
    fleet: Fleet | str = "ideal",
    folder: str | Path | None = None,
    problem: str | Problem = "classification",
    resume: bool = False,
    listeners: Listening = (),
    progress: Progress = False,
    **settings: Any,
) -> Result:
    """Trains any module on any data, with any composition of parts; the module itself is left as it is.

    model: an ``nn.Module`` (its weights are the start, whatever the seed), a function without arguments that makes one
        (its weights are drawn from the run's seed), a `Network`, or the name of one of Motley's models.
    data: a pair of arrays (x, y), a ``torch.utils.data.Dataset``, a list of one such per client, a name such as
        "mnist", or Motley's own `Dataset` or `FederatedData`. What is not yet divided is, by `clients` and `partition`.
    test: another pair or data set, or the fraction to set aside (a fifth, unless told); for a list of clients' data
        also a list with one pair or data set per client, on which each client is judged by itself, too.
    partition: a short form, or a list with the numbers of each client's training samples.
    method: ``compose(fedavg(), proximal(mu=0.01))``, a list of parts and methods, or its short form "fedprox+ama".
    scale: whose statistics scale the inputs: "none" (what is given is taken as it is, unless told), "pooled",
        "per_client" or "public"; `Result.module` takes raw inputs whatever was chosen.
    folder: where the run is saved; with ``resume=True`` it goes on from what is saved there.
    problem: what is learned, "classification" (the default), "regression", or a `motley.Problem` of one's own.
    listeners: told what happens: `motley.Listener`, or functions of the record of a round, or of run and record.
    progress: True shows a line that tells how far the run is; "auto" does where a person watches.
    settings: everything else a recipe has: rounds, cohort, epochs, batch_size, lr, seed, executor, ...
    """
    _check_given(settings)
    made = _method(method)
    lists = None if isinstance(partition, str) else partition
    who = _told_division(partition, clients)
    rate = _rate(settings.get("lr"))
    content: dict[str, Any] = {"name": "train", **who, **settings, **_told_rate(rate)}
    content |= _names(model, method if made is None else made, fleet, problem)
    recipe = load({**content, "data": data if isinstance(data, str) else "given"})
    divided, public = None, None  # data that the recipe names are its own to divide
    if not isinstance(data, str) or lists is not None:
        divided, public = as_federated(data, test, recipe, make_problem(problem), lists)
        recipe = _told(recipe, divided) if _is_divided(data) else recipe
    given = Given(
        data=divided,
        public=public,
        net=_network(model, recipe.seed),
        method=made,
        fleet=_unless_named(fleet),
        problem=_unless_named(problem),
        lr=rate,
    )
    place = Path(folder) if folder is not None else None
    going_on = resume and place is not None and has_checkpoint(place)
    return launch(recipe, place, [*progress_listeners(progress), *listeners], given, resume=going_on)


def _rate(lr: Any) -> Callable[[int], float] | None:
    """A learning rate that was given as a function, whose mistakes are told in a sentence."""
    if not callable(lr):
        return None

    def checked(number: int) -> float:
        try:
            return float(lr(number))
        except MotleyError:
            raise
        except Exception as error:
            raise RecipeError(
                f"The function given as lr failed in round {number} ({type(error).__name__}: {error}); it takes the "
                "number of a round, from 1, and returns a number."
            ) from error

    return checked


def _check_given(settings: Mapping[str, Any]) -> None:
    for key in GIVEN:
        if key in settings:
            raise RecipeError(f"'{key}' is given twice.")


def _told_division(partition: str | Sequence[Any], clients: int) -> dict[str, Any]:
    """What the recipe says of who holds what, which may have been given as lists."""
    if isinstance(partition, str):
        return {"partition": partition, "clients": clients}
    return {"partition": GIVEN_IN_PYTHON, "clients": len(partition)}


def _told_rate(rate: Callable[[int], float] | None) -> dict[str, Any]:
    """What the recipe says of a learning rate that was given as a function."""
    return {} if rate is None else {"lr": float(rate(1)), "lr_schedule": GIVEN_IN_PYTHON}


def given_again(
    recipe: Recipe,
    *,
    model: Model | None = None,
    data: Any = None,
    test: Any = None,
    partition: Sequence[Any] | None = None,
    method: str | Composable | Sequence[Composable] | None = None,
    parts: Sequence[Any] = (),
    **others: Any,
) -> Given:
    """What a run is given when it goes on, in the forms of `train`; ``others`` are fields of `Given`."""
    _check_parts(parts)
    others = {key: _rate(value) if key == "lr" else _unless_named(value) for key, value in others.items()}
    for key in others:
        if key not in Given._fields:
            raise UnknownNameError("thing that a run can be given", key, ["model", "test", "parts", *Given._fields])
    if data is not None:
        problem = others.get("problem") or make_problem(recipe.problem)
        divided, held = as_federated(data, test, recipe, problem, partition)
        others = {"public": held, **others, "data": divided}
    if model is not None:
        others["net"] = _network(model, recipe.seed)
    if method is not None:
        others["method"] = _method(method)
    return Given(**others)


def _check_parts(parts: Sequence[Any]) -> None:
    for factory in parts:
        name = getattr(factory, "__name__", str(factory))
        if name not in PARTS:
            raise InputError(f"'{name}' is no factory of parts: decorate it with @part, and give the function itself.")


def _is_divided(data: Any) -> bool:
    """Whether data come client by client."""
    listed = isinstance(data, list) and bool(data) and not isinstance(data[0], (int, float, list))
    return listed or isinstance(data, FederatedData)


def _told(recipe: Recipe, divided: FederatedData) -> Recipe:
    """The recipe of a run on data that came divided: it claims no partition, and as many clients as there are."""
    for key in ("partition", "skew"):
        if getattr(recipe, key) not in (Recipe.model_fields[key].default, GIVEN_IN_PYTHON):
            raise DataError(
                f"The data come divided among clients, so {key}='{getattr(recipe, key)}' has no effect on them; leave "
                "it out, or give all samples in one data set."
            )
    return load(recipe, {"partition": GIVEN_IN_PYTHON, "clients": divided.n_clients})


def _names(model: Any, method: Any, fleet: Any, problem: Any) -> dict[str, str]:
    """What the recipe calls these: names as they were given, objects by what they are called."""
    given = {"model": model, "method": method, "fleet": fleet, "problem": problem}
    names = {key: value for key, value in given.items() if isinstance(value, str)}
    if not isinstance(model, str):
        module = model.module if isinstance(model, Network) else model
        named = module if callable(module) and not isinstance(module, nn.Module) else type(module)
        names["model"] = str(getattr(named, "__name__", type(named).__name__)).strip("<>").lower()
    names |= {key: value.name for key, value in given.items() if isinstance(value, Method | Problem)}
    return names


def _unless_named(thing: str | T) -> T | None:
    """What was given as an object; None where the recipe names it."""
    return None if isinstance(thing, str) else thing


def _network(model: Model, seed: int) -> Network | None:
    """The model as a network; one that a function makes is drawn from the seed of the run."""
    if isinstance(model, str | Network):
        return None if isinstance(model, str) else model
    made = model if isinstance(model, nn.Module) else _made(model, seed)
    if not isinstance(made, nn.Module):
        raise DataError(
            f"The model is of type {type(made).__name__}; give a module (an instance of nn.Module), a function without "
            "arguments that makes one, or the name of a model."
        )
    return Network(made)


def _made(model: Any, seed: int) -> Any:
    """What a function or class without arguments makes; anything else as it is."""
    if not callable(model):
        return model
    try:
        inspect.signature(model).bind()
    except TypeError:
        what = f"the class {model.__name__}" if isinstance(model, type) else "a function"
        raise DataError(
            f"The model is {what} that needs arguments; give a module, or a function without arguments that makes one."
        ) from None
    return drawn(model, Key.root(seed).fold("init"))


def _method(method: str | Composable | Sequence[Composable]) -> Method | None:
    if isinstance(method, str):
        return None
    if isinstance(method, Method):
        return method
    return compose(*method) if isinstance(method, list | tuple) else compose(cast("Part", method))


def as_federated(
    data: Any, test: Any, recipe: Recipe, problem: Problem, lists: Sequence[Any] | None = None
) -> tuple[FederatedData, Data | None]:
    """Anything `train` takes as data, divided among clients, and what the server holds of it."""
    by_client = isinstance(data, list) and _is_divided(data)
    if lists is not None:
        _check_lists(data, test, recipe, by_client)
    if isinstance(data, FederatedData):
        return data, None
    if by_client:
        homes = _from_homes(data, test, problem)
        _check_kinds(homes.dataset, problem)
        return homes, None
    whole = _dataset(data, {} if test is None else {"test": test}, problem)
    _check_kinds(whole, problem)
    dataset, public = server_samples(recipe, whole)
    return share_out(recipe, dataset, None if lists is None else from_lists(lists, len(dataset))), public


def _check_kinds(dataset: Dataset, problem: Problem) -> None:
    """Refuses classes where there is one: any model would be right about it, and have learned nothing."""
    if problem.classes and dataset.n_classes == 1:
        raise DataError(
            "All labels are 0, so there is one class and nothing to learn; where numbers are to be learned, say "
            "problem='regression'."
        )


def _from_homes(data: list[Any], test: Any, problem: Problem) -> FederatedData:
    """Clients' own data, with test samples for all together or for each."""
    if test is None or isinstance(test, float):
        raise DataError(
            "Data given client by client need a test set: test=(x, y), a data set, or a list with one for each client."
        )
    if not isinstance(test, list):
        return from_clients(data, test, classes=problem.classes, kind=problem.inputs)
    pairs = [items(one) for one in test]
    x, y = (torch.cat([as_tensor(pair[i], "test samples") for pair in pairs]) for i in (0, 1))
    whole = from_clients(data, (x, y), classes=problem.classes, kind=problem.inputs)
    return with_tests(whole, [len(pair[1]) for pair in pairs])


def _check_lists(data: Any, test: Any, recipe: Recipe, by_client: bool) -> None:
    """Refuses lists of samples where it is not clear which samples they number."""
    if by_client or isinstance(data, FederatedData):
        raise DataError("These data are divided among clients already; leave out 'partition'.")
    if recipe.public is not None:
        raise DataError("Lists of samples leave none to the server; leave out 'public', or divide by a short form.")
    if not isinstance(data, str | Dataset) and (test is None or isinstance(test, float)):
        raise DataError(
            "Lists number the training samples, so the test samples must be given apart: test=(x, y) or a data set."
        )


def _dataset(data: Any, test: dict[str, Any], problem: Problem) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str):
        return load_dataset(data)
    told = {**test, "classes": problem.classes, "kind": problem.inputs}
    if isinstance(data, TorchDataset):
        return from_torch(data, **told)
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], TorchDataset):
        return from_arrays(*data, **told)
    raise DataError(
        f"Data of type {type(data).__name__} cannot be used: give a pair (x, y), a torch data set, a list of one "
        "such per client, or the name of a data set."
    )
