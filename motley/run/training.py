"""`motley.train`: any module and any data, without a recipe file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import Dataset as TorchDataset

from motley.core.errors import DataError, RecipeError
from motley.core.network import Network
from motley.core.part import Composable, Method, Part, compose
from motley.data.adapters import from_arrays, from_clients, from_torch
from motley.data.dataset import Dataset
from motley.data.datasets import load as load_dataset
from motley.data.federated import FederatedData
from motley.fleet.fleet import Fleet
from motley.run.experiment import prepare, share_out
from motley.run.recipe import Recipe, load
from motley.run.runner import Observer, Result, Run, begin

GIVEN = ("data", "model", "method", "fleet")
"""Keys of a recipe that `train` takes as objects."""


def train(
    model: nn.Module | Network | str,
    data: Any,
    *,
    test: Any = None,
    method: str | Composable | Sequence[Composable] = "fedavg",
    clients: int = 20,
    partition: str = "iid",
    fleet: Fleet | str = "ideal",
    folder: str | Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
    **settings: Any,
) -> Result:
    """Trains any module on any data, with any composition of parts; the module itself is left as it is.

    model: an ``nn.Module`` (its weights are the start), a `Network`, or the name of one of Motley's models.
    data: a pair of arrays (x, y), a ``torch.utils.data.Dataset``, a list of one such per client, a name such as
        "mnist", or Motley's own `Dataset` or `FederatedData`. What is not yet divided is, by `clients` and `partition`.
    test: another pair or data set, or the fraction to set aside (a fifth, unless told).
    method: ``compose(fedavg(), proximal(mu=0.01))``, a list of parts and methods, or its short form "fedprox+ama".
    folder: where the run is saved; with ``resume=True`` it goes on from what is saved there.
    settings: everything else a recipe has: rounds, cohort, epochs, batch_size, lr, seed, executor, ...
    """
    for key in GIVEN:
        if key in settings:
            raise RecipeError(f"'{key}' is given twice.")
    made = _method(method)
    content: dict[str, Any] = {"name": "train", "partition": partition, "clients": clients, **settings}
    content["method"] = method if isinstance(method, str) else made.name if made else "fedavg"
    content["model"] = model if isinstance(model, str) else _name(model)
    if isinstance(fleet, str):
        content["fleet"] = fleet
    recipe = load({**content, "data": data if isinstance(data, str) else "given"})
    divided = as_federated(data, test, recipe)
    net = None if isinstance(model, str) else model if isinstance(model, Network) else Network(model)
    world = None if isinstance(fleet, str) else fleet
    experiment = prepare(recipe, data=divided, net=net, method=made, fleet=world)
    place = Path(folder) if folder is not None else None
    saved = place is not None and (place / "checkpoint" / "checkpoint.json").is_file()
    if place is not None and not (saved and resume):
        begin(recipe, place)
    run = Run(experiment, place, observer)
    if saved and resume:
        run.take_up()
    return run.go()


def _name(model: nn.Module | Network) -> str:
    return type(model.module if isinstance(model, Network) else model).__name__.lower()


def _method(method: str | Composable | Sequence[Composable]) -> Method | None:
    if isinstance(method, str):
        return None
    if isinstance(method, Method):
        return method
    return compose(method) if isinstance(method, Part) else compose(*method)


def as_federated(data: Any, test: Any, recipe: Recipe) -> FederatedData:
    """Anything `train` takes as data, divided among clients."""
    if isinstance(data, FederatedData):
        return data
    if isinstance(data, list) and data and not isinstance(data[0], (int, float, list)):
        if test is None or isinstance(test, float):
            raise DataError("Data given client by client need a test set: test=(x, y) or a data set.")
        return from_clients(data, test)
    dataset = _dataset(data, {} if test is None else {"test": test})
    return share_out(recipe, dataset)


def _dataset(data: Any, test: dict[str, Any]) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str):
        return load_dataset(data)
    if isinstance(data, TorchDataset):
        return from_torch(data, **test)
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], TorchDataset):
        return from_arrays(*data, **test)
    raise DataError(
        f"Data of type {type(data).__name__} cannot be used: give a pair (x, y), a torch data set, a list of one "
        "such per client, or the name of a data set."
    )
