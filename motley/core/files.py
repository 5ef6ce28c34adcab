"""Files that are either whole or not there: written beside, flushed, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from motley.core.errors import StateError


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def flush(path: Path) -> None:
    """Sees to it that what was written to a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def append_line(path: Path, line: str) -> None:
    """Adds a line of JSON to a file that others add to as well; a line that one who was killed left half is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file, _alone(file, wait=True):
        end = b"" if _ends_whole(file) else b"\n"
        file.write(end + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _ends_whole(file: IO[bytes]) -> bool:
    """Whether the last line is ended; one that is not JSON, since whoever wrote it was killed, is cut off."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
    if file.read() in (b"", b"\n"):
        return True
    file.seek(0)
    content = file.read()
    begin = content.rfind(b"\n") + 1
    try:
        json.loads(content[begin:])
    except ValueError:
        file.truncate(begin)
        return True
    return False


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """A run's directory for this process alone; the system lets go of it when the process ends, however it does."""
    with (folder / ".lock").open("ab") as lock, ExitStack() as stack:
        try:
            stack.enter_context(_alone(lock, wait=False))
        except OSError:
            raise StateError(
                f"Another process is training the run in {folder}; wait until it ends, or stop it and resume."
            ) from None
        yield


@contextmanager
def _alone(file: IO[bytes], wait: bool) -> Iterator[None]:
    """The system's lock on a file; an error where somebody has it and one does not wait."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
