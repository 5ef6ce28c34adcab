"""Each client's own test samples: a share of what it holds, or what was given for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from motley.core.errors import PartitionError
from motley.core.keys import Key
from motley.data.federated import FederatedData, Partition


def hold_out(data: FederatedData, fraction: float, key: Key) -> FederatedData:
    """The data with a share of every client's samples as its own test samples, which it no longer trains on.

    At least one sample is held out and at least one left; a client with a single one has no test sample.
    """
    partition = data.partition
    if partition.shared:
        raise PartitionError(
            "The clients of this partition share samples, so others would train on what a client is judged on; take "
            "another partition, or leave client_test out."
        )
    sizes = partition.sizes
    held = np.where(sizes > 1, np.clip(np.rint(sizes * fraction).astype(np.int64), 1, np.maximum(sizes - 1, 1)), 0)
    owner = np.repeat(np.arange(partition.n_clients), sizes)
    order = np.lexsort((key.fold("own tests").generator().random(len(owner)), owner))
    place = np.arange(len(owner)) - np.repeat(partition.offsets[:-1], sizes)
    tests = place < held[owner]
    own = replace(data, partition=_some(partition, order[tests], held), own_tests=None)
    return replace(data, partition=_some(partition, np.sort(order[~tests]), sizes - held), own_tests=own)


def _some(partition: Partition, places: np.ndarray, sizes: np.ndarray) -> Partition:
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return replace(partition, index=partition.index[places], offsets=offsets)


def with_tests(data: FederatedData, sizes: Sequence[int]) -> FederatedData:
    """The data with the test set divided among clients in order, ``sizes[i]`` samples for client i."""
    if len(sizes) != data.n_clients:
        raise PartitionError(f"There are test samples for {len(sizes)} clients, but data of {data.n_clients}.")
    d = data.dataset
    tests = replace(d, x=d.test_x, y=d.test_y, groups=d.test_groups, source=None)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    own = FederatedData(tests, Partition(np.arange(len(d.test_y)), offsets), data.transforms)
    return replace(data, own_tests=own)
