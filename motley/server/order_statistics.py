"""Trimmed means and medians of clients' updates, parameter by parameter.

Values of a column are ordered with NaN as the largest, as NumPy sorts them: what an unsound client sends is then cut
off like any other extreme, and a result is NaN only where NaN is among the values that count. Sums are taken in
float64. On a CPU columns go through a sorting network in blocks that stay in the cache; with the extra ``kernels`` and
enough numbers the same network runs compiled (`motley.server.row_kernels`), with the same result bit for bit. Threads
share the columns, as many as torch uses.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.core.acceleration import kernel_for
from motley.core.errors import InputError
from motley.server.row_threads import shared
from motley.server.sorting_network import selecting_network

NETWORK_LIMIT = 64  # clients up to which a network in NumPy is quicker than sorting
BLOCK = 1 << 13  # columns at a time: rows of a block stay in the cache, and calls are few


def trimmed_mean(rows: Tensor, trim: int) -> Tensor:
    """Mean of each column without its ``trim`` smallest and its ``trim`` largest values: rows [K, P] -> [P]."""
    if trim < 0 or 2 * trim >= len(rows):
        raise InputError(
            f"Of {len(rows)} updates none is left when {trim} are cut off on each side; trim must be at least 0 and "
            "less than half of them."
        )
    return middle_mean(rows, trim, len(rows) - trim)


def median(rows: Tensor) -> Tensor:
    """Median of each column; of an even number the mean of the two in the middle. rows [K, P] -> [P]."""
    if len(rows) == 0:
        raise InputError("There is no median of no updates.")
    return middle_mean(rows, (len(rows) - 1) // 2, len(rows) // 2 + 1)


def middle_mean(rows: Tensor, low: int, high: int) -> Tensor:
    """Mean of the values of each column whose rank r is low <= r < high (the smallest has rank 0)."""
    kernel = kernel_for("middle_mean", rows, low, high)
    if kernel is not None:
        made: Tensor = kernel(rows, low, high)
        return made
    if in_memory(rows) and len(rows) <= NETWORK_LIMIT:
        return by_network(rows, low, high)
    return by_sorting(rows, low, high)


def in_memory(rows: Tensor) -> bool:
    """Whether NumPy can look at a tensor as it lies: on a CPU, single or double, without a gradient."""
    plain = rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64)
    return plain and not rows.requires_grad and not torch._C._functorch.is_functorch_wrapped_tensor(rows)


def by_sorting(rows: Tensor, low: int, high: int) -> Tensor:
    """The plain way: sort every column."""
    ordered = torch.from_numpy(np.sort(rows.numpy(), axis=0)) if in_memory(rows) else rows.sort(0).values
    return ordered[low:high].double().mean(0).to(rows.dtype)


def by_network(rows: Tensor, low: int, high: int) -> Tensor:
    """Whole rows of a block of columns are compared at once."""
    table = rows.numpy()
    made = np.empty(table.shape[1], table.dtype)

    def some(first: int, last: int) -> None:
        for begin in range(first, last, BLOCK):
            end = min(begin + BLOCK, last)
            with np.errstate(invalid="ignore", over="ignore"):  # of infinite values
                made[begin:end] = _block_mean(table[:, begin:end], low, high)

    shared(some, table.shape[1], table.size)
    return torch.from_numpy(made)


def _block_mean(block: NDArray[np.floating], low: int, high: int) -> NDArray[np.float64]:
    values, missing = _without_nan(block)
    spare = np.empty_like(values[0])
    for i, j in selecting_network(len(values), low, high):
        np.minimum(values[i], values[j], out=spare)
        np.maximum(values[i], values[j], out=values[j])
        values[i], spare = spare, values[i]
    total = values[low].astype(np.float64)
    for row in values[low + 1 : high]:
        total += row
    total /= high - low
    if missing is not None:
        total[missing > len(values) - high] = np.nan
    return total


def _without_nan(block: NDArray[np.floating]) -> tuple[list[NDArray[np.floating]], NDArray[np.int64] | None]:
    """Copies of the rows with NaN as infinity, and how many each column has; None where there is none at all."""
    values = block.copy()
    bad = np.isnan(values)
    if not bad.any():
        return list(values), None
    values[bad] = np.inf
    return list(values), bad.sum(0)
