"""Partitions whose clients draw from the same pool, so that a sample may belong to several clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from motley.core.errors import PartitionError
from motley.core.keys import Key
from motley.data.dataset import Dataset
from motley.data.federated import Partition
from motley.data.partitions.helpers import Ints, check_clients, check_per_client, even, labels_of


def drawn(
    dataset: Dataset,
    clients: int | None,
    key: Key,
    per_client: int = 2,
    samples: int = 1000,
    in_sequence: bool = False,
) -> Partition:
    """Every client draws `samples` samples, evenly from `per_client` random classes; clients may share samples.

    The pathological setting of ReBaFL: a random set of N classes per client and ``n_i / N`` samples of each. With
    `in_sequence` the samples of a class, in a random order, are handed out one after the other, and from the start
    again only when all are used up, so that clients share no more samples than they must.
    """
    n_clients = check_clients(clients, None)
    return _draw(dataset, np.full(n_clients, per_client), samples, key, None, in_sequence)


def clustered(
    dataset: Dataset,
    clients: int | None,
    key: Key,
    groups: Sequence[int] = (2, 2, 3, 3, 5),
    samples: int = 1000,
    in_sequence: bool = False,
) -> Partition:
    """Clients in equal clusters; those of cluster g draw `samples` samples of ``groups[g]`` random classes each.

    The clustered setting of ReBaFL; clients of one cluster need not have the same classes. `Partition.clusters` tells
    the fleet who belongs together. `in_sequence` is as in `drawn`; clients with fewer classes are served first.
    """
    n_clients = check_clients(clients, None)
    if not groups or len(groups) > n_clients:
        raise PartitionError(f"{n_clients} clients cannot form {len(groups)} clusters; give 1..{n_clients} groups.")
    cluster = np.repeat(np.arange(len(groups)), even(n_clients, len(groups)))
    return _draw(dataset, np.asarray(groups)[cluster], samples, key, cluster, in_sequence)


def _draw(
    dataset: Dataset, per_client: Ints, samples: int, key: Key, clusters: Ints | None, in_sequence: bool
) -> Partition:
    y = labels_of(dataset)
    members = [np.flatnonzero(y == c) for c in range(dataset.n_classes)]
    available = np.array([len(m) for m in members])
    present = np.flatnonzero(available)
    for n in np.unique(per_client):
        check_per_client(int(n), available)
        if samples < n:
            raise PartitionError(f"A client with {n} classes needs at least {n} samples, not samples={samples}.")
    most = -(-samples // int(per_client.min()))
    if most > available[present].min():
        scarce = int(present[available[present].argmin()])
        raise PartitionError(
            f"A client may need {most} samples of one class, but class {scarce} has only {int(available[scarce])}; "
            "lower samples."
        )
    index = np.empty((len(per_client), samples), np.int64)
    take = Stacks(members, key.fold("in sequence")).take if in_sequence else partial(_drawn_anew, members)
    for n in np.unique(per_client):
        index[per_client == n] = _rows(take, present, int((per_client == n).sum()), int(n), samples, key.fold(int(n)))
    offsets = np.arange(len(per_client) + 1, dtype=np.int64) * samples
    return Partition(index.reshape(-1), offsets, shared=True, clusters=clusters)


Take = Callable[[int, int, int, np.random.Generator], Ints]
"""``take(c, k, draws, rng)``: k samples of class c for each of some clients, [draws, k]."""


def _drawn_anew(members: list[Ints], c: int, k: int, draws: int, rng: np.random.Generator) -> Ints:
    return members[c][without_replacement(len(members[c]), k, draws, rng)]


class Stacks:
    """The samples of each class in a random order, of which clients take the next ones, round and round."""

    def __init__(self, members: list[Ints], key: Key) -> None:
        self._members = [key.fold(c).generator().permutation(own) for c, own in enumerate(members)]
        self._next = [0] * len(members)

    def take(self, c: int, k: int, draws: int, _: np.random.Generator) -> Ints:
        """The next k samples of class c for each of some clients: [draws, k]."""
        places = self._next[c] + np.arange(draws * k)
        self._next[c] += draws * k
        return self._members[c][places % len(self._members[c])].reshape(draws, k)


def _rows(take: Take, present: Ints, n_clients: int, n: int, samples: int, key: Key) -> Ints:
    """Samples of clients that hold `n` classes each: [n_clients, samples]."""
    rng = key.generator()
    chosen = present[np.argsort(rng.random((n_clients, len(present)), np.float32), axis=1)[:, :n]]
    rows = np.empty((n_clients, samples), np.int64)
    stops = np.cumsum(even(samples, n))
    for slot, stop in enumerate(stops):
        start = stop - even(samples, n)[slot]
        for c in present:
            who = np.flatnonzero(chosen[:, slot] == c)
            rows[who, start:stop] = take(int(c), int(stop - start), len(who), rng)
    return rows


def without_replacement(n: int, k: int, draws: int, rng: np.random.Generator) -> Ints:
    """`draws` random sets of k different numbers below n (Floyd's algorithm, all sets at once): [draws, k]."""
    chosen = np.empty((draws, k), np.int64)
    for place, top in enumerate(range(n - k, n)):
        new = rng.integers(0, top + 1, draws)
        taken = (chosen[:, :place] == new[:, None]).any(1)
        chosen[:, place] = np.where(taken, top, new)
    return chosen
