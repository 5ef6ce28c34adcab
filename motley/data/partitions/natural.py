"""Partitions by natural ids: writers, roles, hospitals, users."""

from __future__ import annotations

import numpy as np

from motley.core.errors import PartitionError
from motley.core.keys import Key
from motley.data.dataset import Dataset
from motley.data.federated import Partition
from motley.data.partitions.helpers import by_owner


def natural(
    dataset: Dataset, clients: int | None, key: Key, group: str = "", min_size: int = 1, largest: bool = True
) -> Partition:
    """One client per natural id of `group` (for example 'writer', 'role', 'hospital').

    Ids with fewer than `min_size` training samples are left out. When a number of clients is given, the largest ids
    are taken (``largest=false``: random ones). The default group is the data set's only one.
    """
    ids = dataset.groups[_group(dataset, group)].numpy()
    names, owner, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    fit = np.flatnonzero(sizes >= min_size)
    if len(fit) == 0:
        raise PartitionError(
            f"No id of '{dataset.name}' has {min_size} training samples (the largest has {int(sizes.max())}); "
            "lower min_size."
        )
    wanted = len(fit) if clients is None else clients
    if not 1 <= wanted <= len(fit):
        raise PartitionError(
            f"'{dataset.name}' has {len(fit)} ids with at least {min_size} samples (of {len(names)}), so "
            f"clients={clients} is not possible; lower min_size or set clients to 1..{len(fit)}."
        )
    rank = np.argsort(-sizes[fit], kind="stable") if largest else key.generator().permutation(len(fit))
    kept = np.sort(fit[rank[:wanted]])
    place = np.full(len(names), -1)
    place[kept] = np.arange(wanted)
    return by_owner(place[owner], wanted)


def _group(dataset: Dataset, group: str) -> str:
    known = ", ".join(sorted(dataset.groups)) or "none"
    if group:
        if group not in dataset.groups:
            raise PartitionError(f"The data set '{dataset.name}' has no group '{group}'; it has: {known}.")
        return group
    if len(dataset.groups) != 1:
        raise PartitionError(f"Name the group of natural ids of '{dataset.name}', group=...; it has: {known}.")
    return next(iter(dataset.groups))
