"""Files that are either whole or not there: written beside, flushed, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from motley.core.errors import StateError


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_tensors(path: Path, named: dict[str, Tensor]) -> str:
    """Writes named tensors and returns the file's sha256. Tensors may share memory; each is written for itself."""
    seen: set[int] = set()
    whole: dict[str, Tensor] = {}
    for name, tensor in named.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage().data_ptr()
        whole[name] = plain.clone() if storage in seen else plain
        seen.add(storage)
    content = safetensors.torch.save(whole)
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()


def own_copy(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor read from a file, as one of torch's own making.

    What is read lies anywhere in memory, and matrix products give other bits where their inputs are aligned otherwise.
    """
    return tensor.to(device) if torch.device(device).type != "cpu" else tensor.clone()


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """A run's directory for this process alone; the system lets go of it when the process ends, however it does."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateError(
                f"Another process is training the run in {folder}; wait until it ends, or stop it and resume."
            ) from None
        yield
