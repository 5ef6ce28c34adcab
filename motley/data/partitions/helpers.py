"""What partitions are made of: checks that end in a sentence, and steps on whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from motley.core.errors import PartitionError
from motley.data.dataset import Dataset
from motley.data.federated import Partition

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def labels_of(dataset: Dataset) -> Ints:
    y: Ints = dataset.y.numpy().astype(np.int64, copy=False)
    return y


def check_clients(clients: int | None, n_samples: int | None) -> int:
    """The number of clients, which must be given and leave each one a sample (None: samples are shared)."""
    if clients is None:
        raise PartitionError("This partition needs a number of clients; set clients=N.")
    if clients < 1:
        raise PartitionError(f"The number of clients must be at least 1, not {clients}.")
    if n_samples is not None and clients > n_samples:
        raise PartitionError(
            f"{clients} clients cannot share {n_samples} training samples: each needs at least one; use fewer clients."
        )
    return clients


def check_minimum(min_size: int, n_clients: int, n_samples: int) -> None:
    if min_size * n_clients > n_samples:
        raise PartitionError(
            f"{n_clients} clients with at least {min_size} samples each need {min_size * n_clients} samples, but there "
            f"are {n_samples}; lower min_size or use fewer clients."
        )


def check_per_client(per_client: int, available: Ints) -> None:
    present = int((available > 0).sum())
    if not 1 <= per_client <= present:
        raise PartitionError(f"per_client must lie in 1..{present} (the number of classes), not {per_client}.")


def check_positive(partition: str, **values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise PartitionError(f"The partition '{partition}' needs {name} > 0, not {value}.")


def even(total: int, parts: int) -> Ints:
    """`total` cut into `parts` as even as possible, larger ones first."""
    sizes = np.full(parts, total // parts, np.int64)
    sizes[: total % parts] += 1
    return sizes


def share_out(total: int, shares: Floats) -> Ints:
    """Whole numbers in proportion to `shares` that add up to `total` (largest remainders)."""
    if shares.sum() <= 0:
        return np.zeros(len(shares), np.int64)
    exact = total * (shares / shares.sum())
    whole: Ints = np.floor(exact + 1e-9).astype(np.int64)
    left = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:left]] += 1
    return whole


def sizes_by_shares(total: int, shares: Floats, least: int) -> Ints:
    """Client sizes in proportion to `shares` that add up to `total`, none below `least` (the larger ones give)."""
    sizes = share_out(total, shares)
    lacking = np.maximum(least - sizes, 0)
    surplus = np.maximum(sizes - least, 0).astype(np.float64)
    return sizes + lacking - share_out(int(lacking.sum()), surplus)


def by_sizes(order: Ints, sizes: Ints, **rest: Any) -> Partition:
    """Samples in the given order, cut by sizes."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Partition(order[: offsets[-1]].astype(np.int64), offsets, **rest)


def by_owner(owner: Ints, n_clients: int, **rest: Any) -> Partition:
    """From the client of each sample ([N]; -1: nobody's)."""
    held = np.flatnonzero(owner >= 0)
    order = held[np.argsort(owner[held], kind="stable")]
    return by_sizes(order, np.bincount(owner[held], minlength=n_clients), **rest)


def owners_by_counts(counts: Ints, y: Ints, rng: np.random.Generator) -> Ints:
    """The client of each sample ([N], -1: nobody's) when client i gets ``counts[i, c]`` random samples of class c."""
    owner = np.full(len(y), -1, np.int64)
    for c in np.flatnonzero(counts.any(0)):
        samples = rng.permutation(np.flatnonzero(y == c))
        given = np.repeat(np.arange(len(counts)), counts[:, c])
        owner[samples[: len(given)]] = given
    return owner


def top_up(owner: Ints, n_clients: int, min_size: int, y: Ints, rng: np.random.Generator) -> Ints:
    """Owners changed so that every client has `min_size` samples: what large clients have too much goes to small ones.

    Which samples move is random; they are dealt out class after class, so a small client gets as few classes as
    possible. The caller has checked that there are enough samples.
    """
    sizes = np.bincount(owner[owner >= 0], minlength=n_clients)
    lacking = np.maximum(min_size - sizes, 0)
    if not lacking.any():
        return owner
    given = _take(np.maximum(sizes - min_size, 0), int(lacking.sum()), rng)
    held = np.flatnonzero(owner >= 0)
    order = held[np.lexsort((rng.random(len(held)), owner[held]))]  # a client's samples together, shuffled
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = order[place < np.repeat(given, sizes)]
    moved = moved[np.argsort(y[moved], kind="stable")]
    changed = owner.copy()
    needy = rng.permutation(n_clients)
    changed[moved] = np.repeat(needy, lacking[needy])
    return changed


def _take(surplus: Ints, total: int, rng: np.random.Generator) -> Ints:
    """How many of `total` each client gives when all surplus samples are equally likely to go."""
    taken = rng.permutation(np.repeat(np.arange(len(surplus)), surplus))[:total]
    return np.bincount(taken, minlength=len(surplus))
