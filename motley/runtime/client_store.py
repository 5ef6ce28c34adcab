"""What parts keep on clients (control variates, previous models, ...), bounded in memory.

States live in memory up to ``limit`` bytes; the least recently used go to segment files. Segments are only ever added
and dropped whole, so a checkpoint is an index into them plus the states that changed since the last one.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from motley.core import codec
from motley.core.errors import StateError
from motley.core.files import sha256_of
from motley.core.stacking import tree_bytes
from motley.core.tasks import Kept as State


class ClientStore:
    """Client id -> state. ``get`` gives None for a client that has none yet."""

    def __init__(self, folder: Path | None, limit: int = 1 << 30, device: torch.device | str = "cpu") -> None:
        self.folder = folder
        self.limit = limit
        self.device = device
        self._memory: OrderedDict[int, State] = OrderedDict()
        self._bytes = 0
        self._changed: set[int] = set()  # in memory, newer than any segment
        self._where: dict[int, str] = {}  # client -> segment that holds its newest written state
        self._segments: dict[str, str] = {}  # segment file -> sha256
        self._next = 0
        self._gathered = 0  # segments that the last gathering left

    def get(self, client: int) -> State | None:
        if client in self._memory:
            self._memory.move_to_end(client)
            return self._memory[client]
        if client not in self._where:
            return None
        state = self._read(client)
        self._hold(client, state)
        if self._bytes > self.limit:
            self._spill()
        return state

    def put(self, client: int, state: State) -> None:
        if not state:
            return
        self._hold(client, tree_map(_compact, state))
        self._changed.add(client)
        if self._bytes > self.limit:
            self._spill()

    def __len__(self) -> int:
        return len(self._memory.keys() | self._where.keys())

    @property
    def in_memory(self) -> set[int]:
        """Clients whose states are in memory."""
        return set(self._memory)

    @property
    def memory_bytes(self) -> int:
        return self._bytes

    def _hold(self, client: int, state: State) -> None:
        if client in self._memory:
            self._bytes -= tree_bytes(self._memory.pop(client))
        self._memory[client] = state
        self._bytes += tree_bytes(state)

    def _spill(self) -> None:
        """Moves the least recently used half to a segment."""
        if self.folder is None:
            return
        leaving: list[int] = []
        left = self._bytes
        for client, state in self._memory.items():
            if left <= self.limit // 2:
                break
            leaving.append(client)
            left -= tree_bytes(state)
        self._write([client for client in leaving if client in self._changed])
        for client in leaving:
            self._bytes -= tree_bytes(self._memory.pop(client))

    def _write(self, clients: list[int]) -> None:
        if not clients or self.folder is None:
            return
        name = f"clients-{self._next:06d}.safetensors"
        self._next += 1
        states = {str(client): self._memory[client] for client in clients}
        self._segments[name] = codec.write(self.folder / name, states)
        for client in clients:
            self._where[client] = name
            self._changed.discard(client)

    def _read(self, client: int) -> State:
        assert self.folder is not None
        state: State = codec.read(self.folder / self._where[client], self.device, only=str(client))
        return state

    def checkpoint(self) -> dict[str, Any]:
        """Writes what changed and returns the index, as JSON."""
        self._write(sorted(self._changed))
        used = set(self._where.values())
        if len(used) > max(64, 2 * self._gathered):
            self._compact()
            used = set(self._where.values())
            self._gathered = len(used)
        return {
            "where": {str(client): name for client, name in self._where.items()},
            "segments": {name: self._segments[name] for name in sorted(used)},
            "next": self._next,
        }

    def _compact(self) -> None:
        """Gathers all states in fresh segments, a part at a time that takes no more memory than the limit."""
        some: list[int] = []
        borrowed: list[int] = []
        size = 0
        for client in sorted(self._where):
            if client not in self._memory:
                self._memory[client] = self._read(client)
                borrowed.append(client)
            some.append(client)
            size += tree_bytes(self._memory[client])
            if size >= self.limit // 2:
                self._gather(some, borrowed)
                some, borrowed, size = [], [], 0
        self._gather(some, borrowed)

    def _gather(self, clients: list[int], borrowed: list[int]) -> None:
        self._write(clients)
        for client in borrowed:
            del self._memory[client]

    def drop_unused(self) -> None:
        """Deletes segments that no index names any more; call after the new index is safely on disk."""
        if self.folder is None or not self.folder.exists():
            return
        used = set(self._where.values())
        for path in self.folder.glob("clients-*.safetensors"):
            if path.name not in used:
                path.unlink()
        self._segments = {name: digest for name, digest in self._segments.items() if name in used}

    def restore(self, index: dict[str, Any]) -> None:
        """Takes up the index of a checkpoint, after checking that its segments are whole."""
        assert self.folder is not None
        for name, digest in index["segments"].items():
            path = self.folder / name
            if not path.exists() or sha256_of(path) != digest:
                raise StateError(
                    f"The checkpoint is damaged: {path} is {'changed' if path.exists() else 'missing'}; "
                    "restore it from a copy, or start the run anew."
                )
        self._memory.clear()
        self._bytes = 0
        self._changed.clear()
        self._where = {int(client): name for client, name in index["where"].items()}
        self._segments = dict(index["segments"])
        self._next = int(index["next"])


def _compact(leaf: Any) -> Any:
    """A row of a bigger tensor as a tensor of its own, so that it does not keep the bigger one in memory."""
    if isinstance(leaf, Tensor) and leaf.untyped_storage().nbytes() > leaf.numel() * leaf.element_size():
        return leaf.clone()
    return leaf
