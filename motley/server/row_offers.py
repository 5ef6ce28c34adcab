"""Compiled loops offered for order statistics of updates on a CPU; see `motley.core.acceleration`.

They need the extra ``kernels`` (Numba), which is imported and compiles within seconds when a tensor is first large
enough; later processes find the result on disk. The sizes are those from which on they were measured to be quicker
(`motley bench kernels`). Sums are not among them: layer-wise means gain little, and no part adds quantised updates.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from motley.core.acceleration import Kernel, offer, switched_off
from motley.server.largest_entries import BITS, SIGN, by_sample, lower_limit, sample_of
from motley.server.order_statistics import in_memory
from motley.server.row_threads import shared
from motley.server.sorting_network import selecting_network

ORDER_FROM = 200_000  # numbers, all clients together
TOP_FROM = 50_000  # entries of one row
FEW = 50  # one of so many at most is wanted; of more, NumPy's partition is as quick
CACHE = 1 << 20  # bytes of a block of columns of all clients

_any_size: ContextVar[bool] = ContextVar("any_size", default=False)


@contextmanager
def at_any_size() -> Iterator[None]:
    """Inside the block compiled loops take tensors of every size, as measurements and tests want."""
    token = _any_size.set(True)
    try:
        yield
    finally:
        _any_size.reset(token)


@cache
def loops() -> ModuleType | None:
    """The compiled loops; None without Numba, or where it finds no place to keep what it compiles."""
    if find_spec("numba") is None:
        return None
    try:
        from motley.server import row_kernels
    except (ImportError, RuntimeError, OSError):
        return None
    return row_kernels


def ready(rows: Tensor, numbers: int, least: int) -> bool:
    """Whether compiled loops may take a tensor, and are worth it for so many numbers."""
    worth = numbers >= least or _any_size.get()
    return worth and not switched_off() and in_memory(rows) and loops() is not None


def _loops() -> Any:
    return loops()


def middle_mean(rows: Tensor, low: int, high: int) -> Tensor:
    """Mean of the middle ranks of each column."""
    table = rows.contiguous().numpy()
    pairs = np.array(selecting_network(len(table), low, high), np.int64).reshape(-1, 2)
    out = np.empty(table.shape[1], table.dtype)
    width = max(256, min(1 << 12, CACHE // (len(table) * table.itemsize)))

    def some(begin: int, end: int) -> None:
        _loops().middle_mean(table, pairs, low, high, out, begin, end, width)

    shared(some, table.shape[1], table.size)
    return torch.from_numpy(out)


def top_k(rows: Tensor, k: int) -> Tensor:
    """Rows one by one: a limit from a sample, then one pass that collects what is above it."""
    bits, sign = rows.numpy().view(BITS[rows.dtype]), SIGN[rows.dtype]
    made = torch.empty(len(rows), k, dtype=torch.int64)
    out = made.numpy()
    n_bits = 8 * bits.itemsize - 1

    def some(begin: int, end: int) -> None:
        for i in range(begin, end):
            limit = lower_limit(sample_of(bits[i]) & sign, k, bits.shape[1])
            room = bits.shape[1] if limit is None else min(bits.shape[1], 2 * k + 4096)
            if not _loops().top_k(bits[i], sign, limit or 0, room, n_bits, out[i]):
                out[i] = by_sample(rows[i : i + 1], k).numpy()

    shared(some, len(rows), rows.numel())
    return made


def _order_fits(rows: Tensor, low: int, high: int) -> bool:
    return ready(rows, rows.numel(), ORDER_FROM)


def _top_fits(rows: Tensor, k: int) -> bool:
    return ready(rows, rows.shape[-1] if k * FEW <= rows.shape[-1] else 0, TOP_FROM)


offer("middle_mean", Kernel(_order_fits, middle_mean, "trimmed mean and median of updates on a CPU (Numba)"))
offer("top_k", Kernel(_top_fits, top_k, "largest entries of an update on a CPU (Numba)"))
