"""`motley.train`: any module and any data, without a recipe file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.data import Dataset as TorchDataset

from motley.client.problems import make_problem
from motley.core.errors import DataError, RecipeError
from motley.core.network import Network
from motley.core.part import Composable, Method, Part, compose
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
from motley.runtime.experiment import GIVEN as GIVEN_IN_PYTHON
from motley.runtime.experiment import Given, server_samples, share_out
from motley.runtime.launch import Listening, Result, has_checkpoint, launch
from motley.runtime.progress_line import Progress, progress_listeners
from motley.runtime.recipe import Recipe, load

T = TypeVar("T")

GIVEN = ("data", "model", "method", "fleet")
"""Keys of a recipe that `train` takes as objects."""


def train(
    model: nn.Module | Network | str,
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

    model: an ``nn.Module`` (its weights are the start), a `Network`, or the name of one of Motley's models.
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
    for key in GIVEN:
        if key in settings:
            raise RecipeError(f"'{key}' is given twice.")
    made = _method(method)
    lists = None if isinstance(partition, str) else partition
    who = _told_division(partition, clients)
    rate = settings["lr"] if callable(settings.get("lr")) else None
    content: dict[str, Any] = {"name": "train", **who, **settings, **_told_rate(rate)}
    content |= _names(model, method if made is None else made, fleet, problem)
    recipe = load({**content, "data": data if isinstance(data, str) else "given"})
    divided, public = as_federated(data, test, recipe, make_problem(problem), lists)
    given = Given(
        data=divided,
        public=public,
        net=_network(model),
        method=made,
        fleet=_unless_named(fleet),
        problem=_unless_named(problem),
        lr=rate,
    )
    place = Path(folder) if folder is not None else None
    going_on = resume and place is not None and has_checkpoint(place)
    return launch(recipe, place, [*progress_listeners(progress), *listeners], given, resume=going_on)


def _told_division(partition: str | Sequence[Any], clients: int) -> dict[str, Any]:
    """What the recipe says of who holds what, which may have been given as lists."""
    if isinstance(partition, str):
        return {"partition": partition, "clients": clients}
    return {"partition": GIVEN_IN_PYTHON, "clients": len(partition)}


def _told_rate(rate: Callable[[int], float] | None) -> dict[str, Any]:
    """What the recipe says of a learning rate that was given as a function."""
    return {} if rate is None else {"lr": float(rate(1)), "lr_schedule": GIVEN_IN_PYTHON}


def _names(model: Any, method: Any, fleet: Any, problem: Any) -> dict[str, str]:
    """What the recipe calls these: names as they were given, objects by what they are called."""
    given = {"model": model, "method": method, "fleet": fleet, "problem": problem}
    names = {key: value for key, value in given.items() if isinstance(value, str)}
    if not isinstance(model, str):
        names["model"] = type(model.module if isinstance(model, Network) else model).__name__.lower()
    names |= {key: value.name for key, value in given.items() if isinstance(value, Method | Problem)}
    return names


def _unless_named(thing: str | T) -> T | None:
    """What was given as an object; None where the recipe names it."""
    return None if isinstance(thing, str) else thing


def _network(model: nn.Module | Network | str) -> Network | None:
    if isinstance(model, nn.Module):
        return Network(model)
    if not isinstance(model, str | Network):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"of type {type(model).__name__}"
        raise DataError(f"The model is {what}; give a module (an instance of nn.Module) or the name of a model.")
    return None if isinstance(model, str) else model


def _method(method: str | Composable | Sequence[Composable]) -> Method | None:
    if isinstance(method, str):
        return None
    if isinstance(method, Method):
        return method
    return compose(method) if isinstance(method, Part) else compose(*method)


def as_federated(
    data: Any, test: Any, recipe: Recipe, problem: Problem, lists: Sequence[Any] | None = None
) -> tuple[FederatedData, Data | None]:
    """Anything `train` takes as data, divided among clients, and what the server holds of it."""
    by_client = isinstance(data, list) and bool(data) and not isinstance(data[0], (int, float, list))
    if lists is not None:
        _check_lists(data, test, recipe, by_client)
    if isinstance(data, FederatedData):
        return data, None
    if by_client:
        return _from_homes(data, test, problem), None
    dataset, public = server_samples(recipe, _dataset(data, {} if test is None else {"test": test}, problem))
    return share_out(recipe, dataset, None if lists is None else from_lists(lists, len(dataset))), public


def _from_homes(data: list[Any], test: Any, problem: Problem) -> FederatedData:
    """Clients' own data, with test samples for all together or for each."""
    if test is None or isinstance(test, float):
        raise DataError(
            "Data given client by client need a test set: test=(x, y), a data set, or a list with one for each client."
        )
    if not isinstance(test, list):
        return from_clients(data, test, classes=problem.classes)
    pairs = [items(one) for one in test]
    x, y = (torch.cat([as_tensor(pair[i], "test samples") for pair in pairs]) for i in (0, 1))
    return with_tests(from_clients(data, (x, y), classes=problem.classes), [len(pair[1]) for pair in pairs])


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
    if isinstance(data, TorchDataset):
        return from_torch(data, **test, classes=problem.classes)
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], TorchDataset):
        return from_arrays(*data, **test, classes=problem.classes)
    raise DataError(
        f"Data of type {type(data).__name__} cannot be used: give a pair (x, y), a torch data set, a list of one "
        "such per client, or the name of a data set."
    )
