"""Data sets whose items change from one reading to the next, such as pictures cropped at random.

Such items are read anew in every epoch of every task. What they draw from the generators of Python, NumPy and torch is
seeded from the client's key and the epoch, so that a run gives the same model again, on every executor that reads them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.core.keys import Key
from motley.data.reading import item

LOOKED_AT = 16  # items that are read again to see whether they change
WORD = 0x72656164  # keeps these draws apart from those of the minibatches, which fold small numbers


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The global generators begin at a seed inside the block, and go on as before after it."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


@dataclass(frozen=True)
class Changing:
    """Whether items differ from one reading to the next, and whether seeds make them alike again."""

    changes: bool
    repeats: bool


def looked_at(data: Any, n: int, key: Key) -> Changing:
    """Reads a few items several times."""
    some = np.unique(np.linspace(0, n - 1, min(n, LOOKED_AT)).astype(int)).tolist()
    readings = []
    for seed in (0, 1, 2, 0):
        with seeded(int(key.fold("look", seed).tensor())):
            readings.append([item(data, i) for i in some])
    first, *others, again = readings
    return Changing(any(_differ(first, other) for other in (*others, again)), not _differ(first, again))


def _differ(one: list[Any], other: list[Any]) -> bool:
    pairs = (pair for a, b in zip(one, other, strict=True) for pair in zip(a, b, strict=True))
    return any(a.shape != b.shape or a.tobytes() != b.tobytes() for a, b in pairs)


@dataclass(frozen=True)
class Source:
    """Where training samples come from, row by row of the training set."""

    parts: tuple[Any, ...]  # torch data sets; None: the samples of this part do not change
    part: NDArray[np.int64]  # [N] which of them
    index: NDArray[np.int64]  # [N] its item there
    first: Tensor | None = None  # the training samples as they were first read; None once nothing changes them

    def read(self, row: int) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Input and label of a row as they are now; None where they do not change."""
        data = self.parts[int(self.part[row])]
        return None if data is None else item(data, int(self.index[row]))


def arrange(x: Tensor, how: str) -> Tensor:
    """Inputs in the shape in which they are stored."""
    if how == "channel":
        return x[:, None]
    if how == "last":
        return x.permute(0, 3, 1, 2).contiguous()
    return x.reshape(len(x), -1) if how == "flat" else x
