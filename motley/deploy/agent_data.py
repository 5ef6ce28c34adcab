"""An agent's own samples: from a function of the user's, a folder of tables, or a data set of Motley's by seat."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from motley.core.errors import DataError, InputError, MotleyError
from motley.core.network import Network
from motley.core.problem import Problem
from motley.data.adapters import from_arrays, from_torch
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData, Partition
from motley.runtime.experiment import Experiment, Given, prepare
from motley.runtime.recipe import Recipe


def load_function(spec: str) -> Callable[[], Any]:
    """The function that ``file.py:name`` names."""
    path, _, name = spec.partition(":")
    file = Path(path)
    if not file.is_file():
        raise InputError(f"There is no file {path}; name a file and a function in it: hospital.py:load.")
    loaded = importlib.util.spec_from_file_location(file.stem, file)
    assert loaded is not None
    assert loaded.loader is not None
    module = importlib.util.module_from_spec(loaded)
    try:
        loaded.loader.exec_module(module)
    except MotleyError:
        raise
    except Exception as error:
        raise InputError(f"{path} cannot be read: {type(error).__name__}: {error}.") from error
    found = getattr(module, name or "load", None)
    if not callable(found):
        raise InputError(f"{path} has no function '{name or 'load'}'.")
    return found


def own_dataset(spec: str, problem: Problem, target: str = "") -> Dataset:
    """The samples that ``--data`` names: all of them are trained on."""
    if ".py" in Path(spec.partition(":")[0]).suffixes:
        return as_dataset(load_function(spec)(), problem)
    path = Path(spec)
    if path.is_dir() or path.suffix == ".csv":
        return as_dataset(_tables(path, target), problem)
    raise InputError(f"'{spec}' names no data; give file.py:function, a CSV file, or a folder of CSV files.")


def as_dataset(found: Any, problem: Problem) -> Dataset:
    """What a user's function gave, as samples that are all trained on, as they are."""
    if isinstance(found, Dataset):
        return found
    if isinstance(found, tuple) and len(found) == 2:
        return from_arrays(*found, test=0.0, scale=False, classes=problem.classes)
    if hasattr(found, "__getitem__") and hasattr(found, "__len__"):
        return from_torch(found, test=0.0, scale=False, classes=problem.classes)
    raise DataError(f"The data are of type {type(found).__name__}; give a pair (x, y) or a torch data set.")


def _tables(path: Path, target: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of CSV files with a header line: all columns but the target are numbers."""
    if not target:
        raise InputError("Say which column is to be learned: --target COLUMN.")
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    rows = [row for file in files for row in _rows(file)]
    if not rows:
        raise DataError(f"There are no rows in CSV files at {path}.")
    if target not in rows[0]:
        raise DataError(f"{files[0]} has no column '{target}'; its columns are {', '.join(rows[0])}.")
    columns = [name for name in rows[0] if name != target]
    y = _numbers(rows, [target], path)[:, 0]
    whole = bool((y == y.round()).all())  # cells have no type: whole numbers may be labels
    return _numbers(rows, columns, path), y.astype(np.int64) if whole else y


def _numbers(rows: list[dict[str, str]], columns: list[str], path: Path) -> np.ndarray:
    try:
        return np.array([[float(row[name]) for name in columns] for row in rows], np.float32)
    except (ValueError, TypeError, KeyError):
        raise DataError(
            f"A cell of {path} is no number; give tables of numbers without gaps, or a function: hospital.py:load."
        ) from None


def _rows(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        raise DataError(f"There is no file {file}.")
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def layers_of(net: Network) -> tuple[str, ...]:
    """The tensors of a model, each as a name and a shape."""
    return tuple(f"{slot.name} {list(slot.shape)}" for slot in net.layout.slots)


def check_layers(net: Network, wanted: Sequence[str]) -> None:
    """Refuses samples to which a federation's model does not fit: the agent's own would be another one."""
    for mine, theirs in zip_longest(layers_of(net), wanted, fillvalue="nothing"):
        if mine != theirs:
            raise DataError(
                f"These samples do not fit this federation: with them its model has {mine} where it has {theirs}; "
                "compare the number of columns and of classes with those the federation was made for."
            )


def own_data(own: Dataset, seat: int, seats: int) -> FederatedData:
    """The data of a federation as one of its agents knows them: its own samples, of others nothing."""
    if not len(own.test_y):  # an agent judges no model, so any sample will do
        own = replace(own, test_x=own.x[:1], test_y=own.y[:1])
    everything = np.arange(len(own))
    parts = [everything if i == seat else everything[:1] for i in range(seats)]
    return FederatedData(own, Partition.of(parts))


def of_so_many_classes(own: Dataset, classes: int) -> Dataset:
    """Samples as of a federation with so many classes, of which this client may hold a few only."""
    if not own.n_classes or not classes:
        return own
    if own.n_classes > classes:
        raise DataError(
            f"These samples have labels up to {own.n_classes - 1}, but this federation has {classes} classes, 0 to "
            f"{classes - 1}."
        )
    return replace(own, n_classes=classes)


def agent_experiment(recipe: Recipe, seat: int, seats: int, own: Dataset | None) -> Experiment:
    """The experiment as an agent knows it: what everybody does, and its own samples."""
    return prepare(recipe, None if own is None else Given(data=own_data(own, seat, seats)))
