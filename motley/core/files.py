"""Files that are either whole or not there: written beside, flushed, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
