"""Files as server and agents keep them: what must survive a power cut is synced before anybody is told of it.

Names are paths with '/', relative to one folder. Large things (models, updates) are written and read in pieces.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO, Protocol

from motley.core import codec
from motley.core.errors import InputError
from motley.core.types import Tree

BLOCK = 1 << 20
PRIVATE = 0o600  # keys, updates and models are nobody else's to read


class Disk(Protocol):
    """A folder of files. What `write`, `sync` and `move` have returned from is safe."""

    def write(self, name: str, data: bytes) -> None:
        """A whole file, or none: written beside, synced, renamed."""

    def append(self, name: str, data: bytes) -> None:
        """Adds to a file; safe after `sync`."""

    def sync(self, name: str) -> None: ...

    def put(self, name: str, offset: int, data: bytes) -> None:
        """Fills a part of a file; safe after `sync` or `move`."""

    def move(self, name: str, new: str) -> None:
        """Gives a file that was filled its name, in one step, once all of it is safe."""

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes | None:
        """The content, or some of it; None where there is no such file."""

    def size(self, name: str) -> int | None: ...

    def delete(self, name: str) -> None: ...

    def names(self, prefix: str) -> list[str]:
        """Of all files that begin so, in order."""

    def save(self, name: str, tree: Tree) -> tuple[str, int]:
        """Writes a tree; its digest and its size."""

    def load(self, name: str) -> Tree:
        """The tree of a file; ValueError where it is none."""


class FolderDisk:
    """Implements `Disk` on a real folder."""

    def __init__(self, root: Path) -> None:
        if not hasattr(os, "pwrite"):
            raise InputError("A deployment keeps its files in a way that Windows has not; use Linux, macOS or WSL.")
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._appending: dict[str, BinaryIO] = {}

    def path(self, name: str) -> Path:
        return self.root / name

    def write(self, name: str, data: bytes) -> None:
        beside = self._beside(name)
        with open(beside, "wb", opener=_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._rename(beside, name)

    def append(self, name: str, data: bytes) -> None:
        file = self._appending.get(name)
        if file is None:
            path = self._made(name)
            new = not path.exists()
            file = self._appending[name] = open(path, "ab", 0, opener=_private)  # noqa: SIM115
            if new:
                _sync_folder(path.parent)
        written = file.write(data)
        if written is not None and written < len(data):  # a disk that is full may take a part
            file.truncate(file.tell() - written)
            raise OSError(28, "No space left on device", str(self.path(name)))

    def sync(self, name: str) -> None:
        file = self._appending.get(name)
        if file is not None:
            os.fsync(file.fileno())
            return
        with self.path(name).open("rb") as opened:
            os.fsync(opened.fileno())

    def put(self, name: str, offset: int, data: bytes) -> None:
        path = self._made(name)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE)
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(descriptor, data[done:], offset + done)
        finally:
            os.close(descriptor)

    def move(self, name: str, new: str) -> None:
        self.sync(name)
        self._rename(self.path(name), new)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes | None:
        try:
            with self.path(name).open("rb") as file:
                file.seek(offset)
                return file.read(-1 if length is None else length)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def size(self, name: str) -> int | None:
        try:
            return self.path(name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def delete(self, name: str) -> None:
        file = self._appending.pop(name, None)
        if file is not None:
            file.close()
        with contextlib.suppress(FileNotFoundError):
            self.path(name).unlink()

    def names(self, prefix: str) -> list[str]:
        folder = self.path(prefix).parent if not prefix.endswith("/") else self.path(prefix)
        if not folder.is_dir():
            return []
        found = (path.relative_to(self.root).as_posix() for path in folder.rglob("*") if path.is_file())
        return sorted(name for name in found if name.startswith(prefix) and not name.endswith(".tmp"))

    def save(self, name: str, tree: Tree) -> tuple[str, int]:
        beside = self._beside(name)
        codec.save(beside, tree)
        with beside.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        size = beside.stat().st_size
        self._rename(beside, name)
        return digest, size

    def load(self, name: str) -> Tree:
        return codec.open_tree(self.path(name))

    def free(self) -> int:
        """Bytes that are left."""
        return shutil.disk_usage(self.root).free

    def close(self) -> None:
        for file in self._appending.values():
            file.close()
        self._appending.clear()

    def _made(self, name: str) -> Path:
        path = self.path(name)
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            _sync_folder(path.parent.parent)
        return path

    def _beside(self, name: str) -> Path:
        path = self._made(name)
        return path.with_name(f".{path.name}.tmp")

    def _rename(self, beside: Path, name: str) -> None:
        path = self._made(name)
        beside.replace(path)
        _sync_folder(path.parent)


def _private(path: str, flags: int) -> int:
    """Opens a file that nobody else may read."""
    return os.open(path, flags, PRIVATE)


def _sync_folder(folder: Path) -> None:
    """Makes sure that what was created or renamed in a folder is still there after a power cut."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # a system that opens no folders
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)


def digest_of_file(disk: Disk, name: str) -> str:
    """sha256 of a file, block by block."""
    made = hashlib.sha256()
    offset = 0
    while block := disk.read(name, offset, BLOCK):
        made.update(block)
        offset += len(block)
    return made.hexdigest()
