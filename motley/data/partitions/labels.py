"""Partitions by label: equal shares, a few classes per client, Dirichlet proportions, major classes, shards."""

from __future__ import annotations

import numpy as np

from motley.core.errors import PartitionError
from motley.core.keys import Key
from motley.data.dataset import Dataset
from motley.data.federated import Partition
from motley.data.partitions.count_tables import fit, round_table
from motley.data.partitions.helpers import (
    Ints,
    by_owner,
    by_sizes,
    check_clients,
    check_minimum,
    check_per_client,
    check_positive,
    even,
    labels_of,
    owners_by_counts,
    share_out,
    sizes_by_shares,
    top_up,
)

TRIES = 10  # Dirichlet draws before small clients are topped up instead


def iid(dataset: Dataset, clients: int | None, key: Key) -> Partition:
    """Every client gets an equal random share of all samples."""
    n_clients = check_clients(clients, len(dataset))
    return by_sizes(key.generator().permutation(len(dataset)), even(len(dataset), n_clients))


def classes(dataset: Dataset, clients: int | None, key: Key, per_client: int = 2) -> Partition:
    """Every client holds samples of exactly `per_client` classes; no sample is shared and all are used.

    Each class is cut into pieces as even as possible, in proportion to its size, and every client gets `per_client`
    pieces of different classes. With fewer pieces (clients x per_client) than classes, the rest of the classes go
    unused.
    """
    y = labels_of(dataset)
    n_clients = check_clients(clients, len(y))
    available = np.bincount(y, minlength=dataset.n_classes)
    check_per_client(per_client, available)
    rng = key.generator()
    pieces = pieces_of(available, n_clients, per_client, rng)
    held = deal(pieces, n_clients, per_client, rng)
    counts = np.zeros((n_clients, dataset.n_classes), np.int64)
    for c in np.flatnonzero(pieces):
        holders = rng.permutation(np.flatnonzero((held == c).any(1)))
        counts[holders, c] = even(int(available[c]), len(holders))
    return by_owner(owners_by_counts(counts, y, rng), n_clients)


def dirichlet(
    dataset: Dataset, clients: int | None, key: Key, alpha: float = 0.5, min_size: int = 10, balance: bool = False
) -> Partition:
    """Each class is divided among the clients in proportions drawn from Dir(alpha); small alpha, strong skew.

    For class c: ``p_c ~ Dir_M(alpha)`` and client i gets the share ``p_ci`` of it (Hsu et al. 2019). Drawn anew up to
    ten times while a client has fewer than `min_size` samples; after that, small clients are topped up from the
    others, one class at a time. ``balance``: a client that already holds its even share gets no more of the later
    classes (flwr-datasets calls this self-balancing).
    """
    y = labels_of(dataset)
    n_clients = check_clients(clients, len(y))
    check_positive("dirichlet", alpha=alpha)
    check_minimum(min_size, n_clients, len(y))
    rng = key.generator()
    available = np.bincount(y, minlength=dataset.n_classes)
    for _ in range(TRIES):
        counts = _dirichlet_counts(available, n_clients, alpha, balance, rng)
        if counts.sum(1).min() >= min_size:
            break
    owner = top_up(owners_by_counts(counts, y, rng), n_clients, max(min_size, 1), y, rng)
    return by_owner(owner, n_clients)


def inner_dirichlet(
    dataset: Dataset, clients: int | None, key: Key, alpha: float = 0.5, size_alpha: float = 0.0, min_size: int = 10
) -> Partition:
    """Each client draws its own class mix from Dir(alpha); its size is fixed beforehand.

    ``p_i ~ Dir_C(alpha)``; sizes are even, or drawn from Dir(size_alpha) where that is positive. Where the classes do
    not suffice for all mixes, the table is scaled to the classes at hand, sizes and class totals kept exactly.
    """
    y = labels_of(dataset)
    n_clients = check_clients(clients, len(y))
    check_positive("inner_dirichlet", alpha=alpha)
    least = max(min_size, 1)
    check_minimum(least, n_clients, len(y))
    rng = key.generator()
    sizes = even(len(y), n_clients)
    if size_alpha > 0:
        sizes = sizes_by_shares(len(y), rng.dirichlet(np.full(n_clients, size_alpha)), least)
    available = np.bincount(y, minlength=dataset.n_classes)
    mix = rng.dirichlet(np.full(dataset.n_classes, alpha), n_clients)
    counts = round_table(fit(mix * sizes[:, None], sizes, available), sizes, available, rng)
    return by_owner(owners_by_counts(counts, y, rng), n_clients)


def major_minor(dataset: Dataset, clients: int | None, key: Key, major: int = 4, ratio: float = 10.0) -> Partition:
    """Equal sizes; each client has `major` classes of which it holds about `ratio` times as much as of the others.

    GANDALF's setting. Every class is a major one of as many clients as any other, as far as the numbers allow.
    """
    y = labels_of(dataset)
    n_clients = check_clients(clients, len(y))
    check_positive("major_minor", ratio=ratio)
    available = np.bincount(y, minlength=dataset.n_classes)
    check_per_client(major, available)
    rng = key.generator()
    held = deal(pieces_of(np.where(available > 0, len(y), 0), n_clients, major, rng), n_clients, major, rng)
    weight = np.ones((n_clients, dataset.n_classes))
    np.put_along_axis(weight, held, ratio, 1)
    sizes = even(len(y), n_clients)
    counts = round_table(fit(weight, sizes, available), sizes, available, rng)
    return by_owner(owners_by_counts(counts, y, rng), n_clients)


def shards(dataset: Dataset, clients: int | None, key: Key, per_client: int = 2, shard_size: int = 0) -> Partition:
    """Samples sorted by label are cut into equal shards, and every client gets `per_client` random ones.

    McMahan et al. 2017. ``shard_size`` fixes the size of a shard (the rest goes unused); else all samples are used.
    """
    y = labels_of(dataset)
    n_clients = check_clients(clients, len(y))
    n_shards = n_clients * per_client
    if per_client < 1 or n_shards * max(shard_size, 1) > len(y):
        raise PartitionError(
            f"{n_clients} clients with {per_client} shards of at least {max(shard_size, 1)} samples cannot be cut from "
            f"{len(y)} samples; use fewer or smaller shards."
        )
    rng = key.generator()
    order = np.lexsort((rng.random(len(y)), y))
    pool = n_shards if shard_size == 0 else len(y) // shard_size
    sizes = even(len(y), n_shards) if shard_size == 0 else np.full(pool, shard_size)
    shard = np.repeat(np.arange(pool), sizes)
    holder = np.full(pool, -1)
    holder[rng.permutation(pool)[:n_shards]] = np.arange(n_shards) // per_client
    owner = np.full(len(y), -1)
    owner[order[: len(shard)]] = holder[shard]
    return by_owner(owner, n_clients)


def pieces_of(available: Ints, n_clients: int, per_client: int, rng: np.random.Generator) -> Ints:
    """Into how many pieces each class is cut: in proportion to its size, at most one piece per client and sample."""
    limit = np.minimum(available, n_clients)
    total = n_clients * per_client
    if limit.sum() < total:
        raise PartitionError(
            f"{n_clients} clients with {per_client} classes each need {total} pieces of a class, but the samples allow "
            f"only {int(limit.sum())}; use fewer clients or another partition."
        )
    present = np.flatnonzero(available)
    pieces = np.zeros(len(available), np.int64)
    if total <= len(present):
        pieces[rng.choice(present, total, replace=False)] = 1
        return pieces
    pieces[present] = 1
    while (left := total - int(pieces.sum())) > 0:  # each pass fills a class to its limit or ends
        room = limit - pieces
        wanted = np.maximum(total * available / available.sum() - pieces, 0) * (room > 0)
        wanted = wanted if wanted.sum() > 0 else room.astype(np.float64)
        pieces += np.minimum(share_out(left, wanted), room)
    return pieces


def deal(pieces: Ints, n_clients: int, per_client: int, rng: np.random.Generator) -> Ints:
    """Which classes each client holds, [M, per_client], all different within a client.

    Pieces in class order are dealt round and round, which gives nobody the same class twice; then many random pairs of
    clients exchange a piece where both stay without a double.
    """
    order = rng.permutation(len(pieces))
    held = np.repeat(order, pieces[order]).reshape(per_client, n_clients).T.copy()
    held = held[rng.permutation(n_clients)]
    half = n_clients // 2
    for _ in range(20 * per_client if half else 0):
        pair = rng.permutation(n_clients)
        a, b = pair[:half], pair[half : 2 * half]
        i, j = rng.integers(per_client, size=(2, half))
        gives, takes = held[a, i], held[b, j]
        good = ~((held[a] == takes[:, None]).any(1) | (held[b] == gives[:, None]).any(1))
        held[a[good], i[good]], held[b[good], j[good]] = takes[good], gives[good]
    return held


def _dirichlet_counts(available: Ints, n_clients: int, alpha: float, balance: bool, rng: np.random.Generator) -> Ints:
    counts = np.zeros((n_clients, len(available)), np.int64)
    fair = available.sum() / n_clients
    for c in np.flatnonzero(available):
        p = rng.dirichlet(np.full(n_clients, alpha))
        if balance:
            open_ = counts.sum(1) < fair
            p = p * open_ if (p * open_).sum() > 0 else open_ / open_.sum()
        counts[:, c] = np.diff(np.rint(np.cumsum(p) / p.sum() * available[c]).astype(np.int64), prepend=0)
    return counts
