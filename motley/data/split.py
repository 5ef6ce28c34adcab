"""Dividing samples into training, validation and test parts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def stratified(y: NDArray[Any], fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Marks a random ``fraction`` of every class (rounded per class): bool [N]."""
    order = np.lexsort((rng.random(len(y)), y))
    counts = np.bincount(y)
    place = np.arange(len(y)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = np.zeros(len(y), bool)
    chosen[order] = place < np.repeat(np.rint(counts * fraction).astype(np.int64), counts)
    return chosen
