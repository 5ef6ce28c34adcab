"""Dividing samples into training, validation and test parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from motley.core.errors import DataError
from motley.core.keys import Key
from motley.core.types import Data
from motley.data.dataset import Dataset


def stratified(y: NDArray[Any], fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Marks a random ``fraction`` of every class (rounded per class): bool [N]."""
    order = np.lexsort((rng.random(len(y)), y))
    counts = np.bincount(y)
    place = np.arange(len(y)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = np.zeros(len(y), bool)
    chosen[order] = place < np.repeat(np.rint(counts * fraction).astype(np.int64), counts)
    return chosen


def balanced_sample(dataset: Dataset, key: Key, per_class: int) -> Data:
    """``per_class`` random training samples of every class, as a network takes them."""
    y = dataset.y.numpy()
    rng = key.fold("balanced").generator()
    rows = []
    for c in range(dataset.n_classes):
        members = np.flatnonzero(y == c)
        if len(members) < per_class:
            raise DataError(
                f"Class {c} of '{dataset.name}' has {len(members)} samples, fewer than the {per_class} wanted."
            )
        rows.append(rng.choice(members, per_class, replace=False))
    index = torch.from_numpy(np.sort(np.concatenate(rows)))
    return Data(dataset.inputs(dataset.x[index]), dataset.y[index])
