"""Partitions that were made before: remembered in a process, and on disk where making them took long.

Tables of results ask for the same clients again and again, and RADFed's quadratic programme takes many seconds. What is
kept on disk is found by everything that decides it: the short form, the data, the key, and the code of the partitions.
"""

from __future__ import annotations

import hashlib
import io
import time
from functools import cache
from pathlib import Path

import numpy as np

import motley.data
from motley.core.files import sha256_of, write_bytes
from motley.core.keys import Key
from motley.core.registry import parse
from motley.data.dataset import Dataset
from motley.data.downloads import cache_directory
from motley.data.federated import Partition
from motley.data.partitioning import make_partition

KEPT = 16  # in a process
SLOW_SECONDS = 1.0  # what took longer is written to disk
LOOKED_AT = 1000  # samples whose inputs stand for all of a data set's in its digest

_KEPT: dict[str, Partition] = {}


def remembered(spec: str, name: str, dataset: Dataset, clients: int | None, key: Key) -> Partition:
    """The partition of a data set (``name`` is its short form); the same each time, and made once."""
    asked = _digest(spec + _written(spec), name, dataset, clients, key)
    if asked not in _KEPT:
        while len(_KEPT) >= KEPT:
            _KEPT.pop(next(iter(_KEPT)))
        _KEPT[asked] = _from_disk(asked) or _made(asked, spec, dataset, clients, key)
    return _KEPT[asked]


def forget() -> None:
    """Leaves to the disk what this process remembers."""
    _KEPT.clear()


def _written(spec: str) -> str:
    """The content of the file that a partition is read from: it may change while the name stays."""
    paths = [str(call.arguments.get("path", "")) for call in parse(spec, "partition")]
    return "".join(sha256_of(Path(path)) for path in paths if path and Path(path).is_file())


def _made(asked: str, spec: str, dataset: Dataset, clients: int | None, key: Key) -> Partition:
    begun = time.perf_counter()
    partition = make_partition(spec, dataset, clients, key, empty_clients=True)
    if time.perf_counter() - begun > SLOW_SECONDS:
        _to_disk(asked, partition)
    return partition


def _digest(spec: str, name: str, dataset: Dataset, clients: int | None, key: Key) -> str:
    every = max(1, len(dataset) // LOOKED_AT)
    digest = hashlib.sha256(repr((spec, name, clients, key.value, _code())).encode())
    for tensor in (dataset.y, dataset.x[::every], *(dataset.groups[group] for group in sorted(dataset.groups))):
        digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    return digest.hexdigest()[:20]


@cache
def _code() -> str:
    """A digest of the code that makes partitions: another code may make others."""
    (folder,) = map(Path, motley.data.__path__)
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _place(asked: str) -> Path:
    return cache_directory() / "partitions" / f"{asked}.npz"


def _to_disk(asked: str, partition: Partition) -> None:
    arrays = {"index": partition.index, "offsets": partition.offsets, "shared": np.array(partition.shared)}
    if partition.clusters is not None:
        arrays["clusters"] = partition.clusters
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    try:
        write_bytes(_place(asked), content.getvalue())
    except OSError:
        return  # no place to keep it: it is made again next time


def _from_disk(asked: str) -> Partition | None:
    try:
        with np.load(_place(asked)) as kept:
            clusters = dict(kept).get("clusters")
            return Partition(kept["index"], kept["offsets"], bool(kept["shared"]), clusters)
    except Exception:  # not there, or damaged (zipfile, zlib and NumPy each have their own): it is made again
        return None
