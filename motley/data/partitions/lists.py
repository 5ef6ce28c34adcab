"""Partitions that are written down: a list of sample numbers for each client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from motley.core.errors import PartitionError
from motley.core.keys import Key
from motley.data.dataset import Dataset
from motley.data.federated import Partition


def from_lists(lists: Sequence[Any], n_samples: int) -> Partition:
    """One list of training samples per client, counted from 0; a sample may belong to several clients, or to none."""
    parts = [_numbers(one, client, n_samples) for client, one in enumerate(lists)]
    if not parts:
        raise PartitionError("A partition needs at least one list of samples.")
    index = np.concatenate(parts)
    return Partition.of(parts, shared=len(np.unique(index)) < len(index))


def _numbers(one: Any, client: int, n_samples: int) -> np.ndarray:
    try:
        found = np.asarray(one)
    except ValueError:
        found = np.zeros((0, 0))
    if found.size == 0 and found.ndim == 1:
        return np.zeros(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise PartitionError(f"Client {client} of the partition needs a list of whole numbers, one for each sample.")
    low, high = int(found.min()), int(found.max())
    if low < 0 or high >= n_samples:
        wrong = low if low < 0 else high
        raise PartitionError(
            f"Client {client} of the partition names sample {wrong}, but training samples are 0..{n_samples - 1}."
        )
    if len(np.unique(found)) < len(found):
        raise PartitionError(f"Client {client} of the partition names a sample twice.")
    return found.astype(np.int64)


def lists(dataset: Dataset, clients: int | None, key: Key, path: str) -> Partition:
    """A JSON file with one list of training samples per client."""
    try:
        content = json.loads(Path(path).read_text())
    except OSError as error:
        raise PartitionError(f"The partition {path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise PartitionError(f"The partition {path} is not valid JSON.") from None
    if not isinstance(content, list):
        raise PartitionError(f"The partition {path} must be a list with one list of samples per client.")
    return from_lists(content, len(dataset))
