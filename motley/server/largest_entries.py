"""Which entries of an update are the largest in size: what sparse compression keeps.

NaN counts as the largest size of all, and of equal sizes the first comes first, so that the answer is one. A sample of
the entries tells a size that most of the wanted ones exceed; only entries above it are looked at closely. With the
extra ``kernels`` the same runs compiled on a CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.core.acceleration import kernel_for
from motley.core.errors import InputError
from motley.server.order_statistics import in_memory

SAMPLE = 1 << 12  # entries that are looked at first, at least
BITS = {torch.float32: np.int32, torch.float64: np.int64}
SIGN = {torch.float32: 0x7FFFFFFF, torch.float64: 0x7FFFFFFFFFFFFFFF}


def top_k(rows: Tensor, k: int) -> Tensor:
    """Places of the k entries of each row that are largest in size, in order of place: [..., P] -> [..., k]."""
    if not 0 <= k <= rows.shape[-1]:
        raise InputError(f"The {k} largest of {rows.shape[-1]} entries cannot be taken; k must be from 0 to as many.")
    if not in_memory(rows) or k == 0:
        return by_order(rows, k)
    flat = rows.reshape(-1, rows.shape[-1]).contiguous()
    kernel = kernel_for("top_k", flat, k)
    made: Tensor = by_sample(flat, k) if kernel is None else kernel(flat, k)
    return made.reshape(*rows.shape[:-1], k)


def by_order(rows: Tensor, k: int) -> Tensor:
    """The plain way: sort all sizes."""
    order = rows.abs().sort(stable=True, dim=-1, descending=True).indices
    return order[..., :k].sort(-1).values


def by_sample(rows: Tensor, k: int) -> Tensor:
    """Row by row: a lower limit from a sample, then the exact answer among the few above it."""
    sizes = rows.numpy().view(BITS[rows.dtype]) & SIGN[rows.dtype]  # as whole numbers they are ordered, NaN last
    return torch.from_numpy(np.stack([_places(row, k) for row in sizes]))


def _places(sizes: NDArray[Any], k: int) -> NDArray[np.int64]:
    near = candidates(sizes, k)
    found = sizes if near is None else sizes[near]
    cut = np.partition(found, found.size - k)[found.size - k]
    above = np.flatnonzero(found > cut)
    ties = np.flatnonzero(found == cut)[: k - above.size]
    kept = np.sort(np.concatenate([above, ties]))
    return kept if near is None else near[kept]


def candidates(sizes: NDArray[Any], k: int) -> NDArray[np.int64] | None:
    """Places of at least k entries, all of the k largest among them; None where a sample does not help."""
    limit = lower_limit(sample_of(sizes), k, sizes.size)
    if limit is None:
        return None
    near = np.flatnonzero(sizes >= limit)
    return near if near.size >= k else None


def sample_of(row: NDArray[Any]) -> NDArray[Any]:
    """Every 32nd entry of a row, or more of a short one."""
    return row[:: min(32, max(1, row.size // SAMPLE))]


def lower_limit(sample: NDArray[Any], k: int, n: int) -> Any:
    """A size that a sample says more than k of n entries exceed: four standard deviations below the expected one.

    None where a sample does not help: there are too few entries, or too many of them are wanted.
    """
    wanted = k * sample.size / n
    rank = int(wanted + 4.0 * wanted**0.5 + 8)
    if n < 2 * SAMPLE or rank >= sample.size // 2:
        return None
    return np.partition(sample, sample.size - rank)[sample.size - rank]
