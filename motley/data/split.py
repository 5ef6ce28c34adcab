"""Dividing samples into training, validation and test parts: by samples, within each client, or by clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.core.errors import DataError, PartitionError
from motley.core.keys import Key
from motley.core.types import Data
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData, Partition

Ints = NDArray[np.int64]


def stratified(y: NDArray[Any], fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Marks a random ``fraction`` of every class (rounded per class), or of all where targets are no classes: [N]."""
    if y.dtype.kind == "f":
        y = np.zeros(len(y), np.int64)
    order = np.lexsort((rng.random(len(y)), y))
    counts = np.bincount(y)
    chosen = np.zeros(len(y), bool)
    chosen[order] = _places(counts) < np.repeat(np.rint(counts * fraction).astype(np.int64), counts)
    return chosen


def _places(counts: Ints) -> Ints:
    """0, 1, ..., counts[0] - 1, 0, 1, ..., counts[1] - 1, ..."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def by_samples(dataset: Dataset, fraction: float, key: Key) -> Dataset:
    """The data set with a stratified part of its training samples as its test set instead (for tuning)."""
    if not 0 < fraction < 1:
        raise DataError(f"The fraction of validation samples must lie between 0 and 1, not {fraction}.")
    chosen = torch.from_numpy(stratified(dataset.y.numpy(), fraction, key.fold("validation").generator()))
    return _regroup(dataset, ~chosen, chosen)


def pooled(dataset: Dataset) -> Dataset:
    """Training and test samples together as training samples, for a split by clients; the test set is empty."""
    names = dataset.groups.keys() & dataset.test_groups.keys()
    groups = {name: torch.cat([dataset.groups[name], dataset.test_groups[name]]) for name in names}
    return replace(
        dataset,
        x=torch.cat([dataset.x, dataset.test_x]),
        y=torch.cat([dataset.y, dataset.test_y]),
        test_x=dataset.test_x[:0],
        test_y=dataset.test_y[:0],
        groups=groups,
        test_groups={name: ids[:0] for name, ids in groups.items()},
    )


def within_clients(partition: Partition, fractions: Sequence[float], key: Key) -> tuple[Partition, ...]:
    """Every client's samples divided at random, for example by (0.8, 0.1, 0.1): one partition per part.

    Sizes are rounded to the cumulated fractions; every part of every client has at least one sample.
    """
    parts = len(fractions)
    if parts < 2 or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-6:
        raise PartitionError(f"Fractions must be two or more positive numbers that add up to 1, not {list(fractions)}.")
    sizes = partition.sizes
    if sizes.min() < parts:
        raise PartitionError(
            f"Client {int(sizes.argmin())} has {int(sizes.min())} samples, too few for {parts} parts; raise min_size."
        )
    cuts = np.rint(sizes[:, None] * np.cumsum(fractions)).astype(np.int64)
    for i in range(parts):  # at least one sample each, from the front and from the back
        cuts[:, i] = np.maximum(cuts[:, i], (cuts[:, i - 1] if i else 0) + 1)
        cuts[:, i] = np.minimum(cuts[:, i], sizes - (parts - 1 - i))
    owner = np.repeat(np.arange(partition.n_clients), sizes)
    order = np.lexsort((key.fold("within clients").generator().random(len(owner)), owner))
    place = _places(sizes)
    made = []
    for i in range(parts):
        low = cuts[:, i - 1] if i else np.zeros_like(sizes)
        inside = (place >= low[owner]) & (place < cuts[:, i][owner])
        offsets = np.concatenate([[0], np.cumsum(cuts[:, i] - low)])
        made.append(replace(partition, index=partition.index[order[inside]], offsets=offsets))
    return tuple(made)


class Fold(NamedTuple):
    """Client ids of one split by clients."""

    train: Ints
    validation: Ints
    test: Ints


def client_folds(n_clients: int, key: Key, folds: int = 5, inner: bool = False) -> list[Fold]:
    """Clients divided into `folds` sets; each is the test set once, another one the validation set (RADFed, IV-C).

    The validation set is the next one, or with ``inner`` every other one in turn: folds * (folds - 1) splits.
    """
    if not 3 <= folds <= n_clients:
        raise PartitionError(f"A split by clients needs 3..{n_clients} folds (the number of clients), not {folds}.")
    sets = np.array_split(key.fold("folds").generator().permutation(n_clients), folds)
    made = []
    for test in range(folds):
        for shift in range(1, folds if inner else 2):
            validation = (test + shift) % folds
            rest = [sets[i] for i in range(folds) if i not in (test, validation)]
            made.append(Fold(np.sort(np.concatenate(rest)), np.sort(sets[validation]), np.sort(sets[test])))
    return made


def only_clients(partition: Partition, clients: Ints) -> Partition:
    """The partition of some of its clients, renumbered in the given order."""
    made = Partition.of([partition[int(i)] for i in clients], shared=partition.shared)
    return made if partition.clusters is None else replace(made, clusters=partition.clusters[clients])


def by_clients(data: FederatedData, train: Ints, test: Ints) -> FederatedData:
    """Federated data of the training clients, with all samples of the test clients as the test set.

    Samples are taken as their clients see them: with transforms, all inputs are stored as the network takes them.
    """
    if len(np.intersect1d(train, test)):
        raise PartitionError(f"Client {int(np.intersect1d(train, test)[0])} is in the training and in the test part.")
    whole = materialise(data) if data.transforms else data
    rows = torch.from_numpy(only_clients(whole.partition, test).index)
    return FederatedData(judged_on(whole.dataset, rows), only_clients(whole.partition, train))


def judged_on(dataset: Dataset, rows: Tensor) -> Dataset:
    """The data set with some of its training samples as its test set.

    Where each client scaled its own samples, no single scaling leads from raw samples to these.
    """
    return replace(
        dataset,
        test_x=dataset.x[rows],
        test_y=dataset.y[rows],
        test_groups={name: ids[rows] for name, ids in dataset.groups.items()},
        stored=None if dataset.scaled == "per_client" else dataset.stored,
    )


def materialise(data: FederatedData) -> FederatedData:
    """The same data with every client's transforms applied once and for all."""
    rows = torch.from_numpy(data.partition.index)
    owner = torch.from_numpy(np.repeat(np.arange(data.n_clients), data.sizes))
    pieces = [data.gather(r, o) for r, o in zip(rows.split(8192), owner.split(8192), strict=True)]
    old = data.dataset
    dataset = replace(
        old,
        x=torch.cat([x for x, _ in pieces]),
        y=torch.cat([y for _, y in pieces]),
        test_x=old.inputs(old.test_x),
        scaling=None,
        stored=old.scaling or old.stored,
        groups={name: ids[rows] for name, ids in old.groups.items()},
    )
    return FederatedData(dataset, replace(data.partition, index=np.arange(len(rows)), shared=False))


def _regroup(dataset: Dataset, train: Tensor, test: Tensor) -> Dataset:
    def pick(groups: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
        return {name: ids[rows] for name, ids in groups.items()}

    return replace(
        dataset,
        x=dataset.x[train],
        y=dataset.y[train],
        test_x=dataset.x[test],
        test_y=dataset.y[test],
        groups=pick(dataset.groups, train),
        test_groups=pick(dataset.groups, test),
    )


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
