"""Torch data sets, read item by item."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, TensorDataset

from motley.core.errors import DataError

Array = Any  # NumPy array, tensor, or nested lists


def items(data: Any) -> tuple[Array, Array]:
    """All items of a torch data set, or a pair of arrays as it is."""
    if isinstance(data, tuple):
        if len(data) != 2:
            raise DataError(f"A pair (x, y) has two entries, not {len(data)}.")
        return data[0], data[1]
    if type(data) is TensorDataset and len(data.tensors) == 2:
        return data.tensors[0], data.tensors[1]
    n = length(data)
    pairs = [item(data, i) for i in range(n)]
    if not pairs:
        raise DataError("The data set has no samples.")
    return _stacked(data, [x for x, _ in pairs], "input"), _stacked(data, [y for _, y in pairs], "label")


def length(data: Any) -> int:
    """How many samples a torch data set has."""
    name = type(data).__name__
    if isinstance(data, IterableDataset):
        raise DataError(
            f"{name} is an IterableDataset: its samples have no numbers and cannot be divided among clients; give a "
            "data set with __len__ and __getitem__, or arrays."
        )
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        raise DataError(
            f"Data of type {name} cannot be read: give a pair (x, y), or a torch data set with __len__ and __getitem__."
        ) from None


def item(data: Any, i: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Input and label of one item."""
    name = type(data).__name__
    try:
        found = data[i]
    except Exception as error:  # whatever a data set of the user's raises
        raise DataError(f"Item {i} of {name} cannot be read: {type(error).__name__}: {error}.") from error
    if isinstance(found, dict):
        keys = ", ".join(map(str, found))
        raise DataError(f"Items of {name} are dicts ({keys}); they must be pairs (input, label).")
    if not isinstance(found, tuple | list) or len(found) != 2:
        what = (
            f"have {len(found)} entries" if isinstance(found, tuple | list) else f"are of type {type(found).__name__}"
        )
        raise DataError(f"Items of {name} {what}; they must be pairs (input, label).")
    try:
        return _array(found[0]), _array(found[1])
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"Item {i} of {name} is no pair of arrays: {error}.") from None


def _array(value: Any) -> NDArray[Any]:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _stacked(data: Any, values: list[NDArray[Any]], what: str) -> NDArray[Any]:
    for i, value in enumerate(values):
        if value.shape != values[0].shape:
            raise DataError(
                f"The {what} of item {i} of {type(data).__name__} has the shape {value.shape}, that of item 0 "
                f"{values[0].shape}; all must have the same."
            )
    return np.stack(values)
