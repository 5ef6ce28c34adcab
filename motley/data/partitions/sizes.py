"""Partitions by size: quantity skew, power laws, given sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from motley.core.errors import PartitionError
from motley.core.keys import Key
from motley.data.dataset import Dataset
from motley.data.federated import Partition
from motley.data.partitions.helpers import (
    Floats,
    by_owner,
    by_sizes,
    check_clients,
    check_minimum,
    check_per_client,
    check_positive,
    labels_of,
    owners_by_counts,
    share_out,
    sizes_by_shares,
)
from motley.data.partitions.labels import deal, pieces_of


def size_skew(dataset: Dataset, clients: int | None, key: Key, alpha: float = 1.0, min_size: int = 1) -> Partition:
    """Client sizes are drawn from Dir(alpha), labels are not skewed (quantity skew)."""
    n_clients = check_clients(clients, len(dataset))
    check_positive("size_skew", alpha=alpha)
    return _sized(dataset, key.generator().dirichlet(np.full(n_clients, alpha)), key, min_size)


def power_law(
    dataset: Dataset,
    clients: int | None,
    key: Key,
    per_client: int = 2,
    sigma: float = 2.0,
    min_size: int = 10,
) -> Partition:
    """Log-normal sizes and `per_client` classes per client (0: all classes mixed), as in FedProx and FedSAE.

    Every client first gets `min_size` samples of its classes; the rest of each class goes to its holders in proportion
    to draws from lognormal(0, sigma). No sample is shared and all are used.
    """
    y = labels_of(dataset)
    n_clients = check_clients(clients, len(y))
    check_minimum(min_size, n_clients, len(y))
    if sigma < 0:
        raise PartitionError(f"power_law needs sigma >= 0, not {sigma}.")
    rng = key.generator()
    if per_client == 0:
        return _sized(dataset, rng.lognormal(0.0, sigma, n_clients), key, min_size)
    available = np.bincount(y, minlength=dataset.n_classes)
    check_per_client(per_client, available)
    pieces = pieces_of(available, n_clients, per_client, rng)
    held = deal(pieces, n_clients, per_client, rng)
    floor = max(-(-min_size // per_client), 1)
    counts = np.zeros((n_clients, dataset.n_classes), np.int64)
    for c in np.flatnonzero(pieces):
        holders = np.flatnonzero((held == c).any(1))
        rest = int(available[c]) - floor * len(holders)
        if rest < 0:
            raise PartitionError(
                f"Class {c} has {int(available[c])} samples, but {len(holders)} clients want {floor} of them each; "
                "lower min_size or use fewer clients."
            )
        counts[holders, c] = floor + share_out(rest, rng.lognormal(0.0, sigma, len(holders)))
    return by_owner(owners_by_counts(counts, y, rng), n_clients)


def size(dataset: Dataset, clients: int | None, key: Key, partition_sizes: Sequence[int] = ()) -> Partition:
    """Client i gets ``partition_sizes[i]`` random samples."""
    sizes = np.asarray(partition_sizes, np.int64)
    if len(sizes) == 0 or (sizes < 1).any() or sizes.sum() > len(dataset):
        raise PartitionError(
            f"partition_sizes must be positive numbers that add up to at most {len(dataset)} samples, "
            f"not {list(partition_sizes)}."
        )
    if clients is not None and clients != len(sizes):
        raise PartitionError(f"partition_sizes names {len(sizes)} clients, but clients={clients}.")
    return by_sizes(key.generator().permutation(len(dataset)), sizes)


def linear(dataset: Dataset, clients: int | None, key: Key) -> Partition:
    """Sizes in proportion to 1, 2, 3, ...; labels are not skewed."""
    return _sized(dataset, _ranks(dataset, clients), key, 1)


def square(dataset: Dataset, clients: int | None, key: Key) -> Partition:
    """Sizes in proportion to 1, 4, 9, ...; labels are not skewed."""
    return _sized(dataset, _ranks(dataset, clients) ** 2, key, 1)


def exponential(dataset: Dataset, clients: int | None, key: Key) -> Partition:
    """Sizes in proportion to e, e^2, e^3, ...; labels are not skewed."""
    ranks = _ranks(dataset, clients)
    return _sized(dataset, np.exp(ranks - ranks[-1]), key, 1)


def _ranks(dataset: Dataset, clients: int | None) -> Floats:
    return np.arange(1.0, check_clients(clients, len(dataset)) + 1)


def _sized(dataset: Dataset, shares: Floats, key: Key, min_size: int) -> Partition:
    n = len(dataset)
    least = max(min_size, 1)
    check_minimum(least, len(shares), n)
    sizes = sizes_by_shares(n, shares, least)
    return by_sizes(key.fold("order").generator().permutation(n), sizes)
