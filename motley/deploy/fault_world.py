"""A world in which everything fails: a network that loses, doubles, delays and parts; disks that forget and fill up.

It runs on a virtual clock, so that thousands of schedules of faults take a minute, and a seed that fails fails again.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from motley.core import codec
from motley.core.types import Tree
from motley.deploy.wire import Message, Receive


class Subscription(NamedTuple):
    node: str
    pattern: tuple[str, ...]
    receive: Receive


def matches(pattern: tuple[str, ...], subject: list[str]) -> bool:
    """Whether a subject is one of a pattern's: ``*`` is any word, ``>`` one or more at the end."""
    for i, word in enumerate(pattern):
        if word == ">":
            return len(subject) > i
        if i >= len(subject) or word not in ("*", subject[i]):
            return False
    return len(pattern) == len(subject)


class Network:
    """The broker and the lines to it. Nodes that are `cut` off reach nobody; while it is `down` nothing moves."""

    def __init__(self, rng: random.Random, drop: float = 0.0, double: float = 0.0) -> None:
        self.rng, self.drop, self.double = rng, drop, double
        self.delay = (0.005, 0.05)
        self.subscriptions: list[Subscription] = []
        self.cut: set[str] = set()
        self.down = False
        self.restarts = 0  # what is on its way when the broker ends is gone
        self.counts: Counter[str] = Counter()
        self.watch: Callable[[str, bytes], None] | None = None

    def send(self, node: str, subject: str, data: bytes, reply: str) -> None:
        self.counts["sent"] += 1
        if self.watch is not None:
            self.watch(subject, data)
        if self.down or node in self.cut:
            self.counts["lost"] += 1
            return
        words = subject.split(".")
        for entry in [one for one in self.subscriptions if matches(one.pattern, words)]:
            for _ in range(self._copies()):
                late = self.rng.uniform(*self.delay) * (20 if self.rng.random() < 0.02 else 1)
                message = Message(subject, data, reply)
                asyncio.get_running_loop().call_later(late, self._arrive, self.restarts, entry, message)

    def _copies(self) -> int:
        if self.rng.random() < self.drop:
            self.counts["lost"] += 1
            return 0
        if self.rng.random() < self.double:
            self.counts["doubled"] += 1
            return 2
        return 1

    def _arrive(self, restarts: int, entry: Subscription, message: Message) -> None:
        if restarts != self.restarts or self.down or entry.node in self.cut or entry not in self.subscriptions:
            self.counts["lost"] += 1
            return
        entry.receive(message)


class MemoryLink:
    """Implements `Link` on such a network."""

    def __init__(self, network: Network, node: str) -> None:
        self.network, self.node = network, node
        self.hooks: set[Callable[[], None]] = set()
        self._mine: list[Subscription] = []

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        self.network.send(self.node, subject, data, reply)

    def subscribe(self, pattern: str, receive: Receive) -> Subscription:
        entry = Subscription(self.node, tuple(pattern.split(".")), receive)
        self.network.subscriptions.append(entry)
        self._mine.append(entry)
        return entry

    def unsubscribe(self, entry: Subscription) -> None:
        if entry in self._mine:
            self._mine.remove(entry)
            self.network.subscriptions.remove(entry)

    def close(self) -> None:
        for entry in list(self._mine):
            self.unsubscribe(entry)


class MemoryDisk:
    """Implements `Disk` in memory. A crash takes back what was not synced, or some of it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.full = False
        self.files: dict[str, bytearray] = {}
        self.synced: dict[str, bytes] = {}
        self.deleted: dict[str, bytes] = {}  # since its folder was last synced: a crash may bring them back

    def _room(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def _folder_is_safe(self, name: str) -> None:
        folder = name.rpartition("/")[0]
        for gone in [one for one in self.deleted if one.rpartition("/")[0] == folder]:
            del self.deleted[gone]

    def write(self, name: str, data: bytes) -> None:
        self._room()
        self.files[name] = bytearray(data)
        self.synced[name] = bytes(data)
        self._folder_is_safe(name)

    def append(self, name: str, data: bytes) -> None:
        self._room()
        self.files.setdefault(name, bytearray()).extend(data)
        self.synced.setdefault(name, b"")

    def sync(self, name: str) -> None:
        self._room()
        self.synced[name] = bytes(self.files[name])

    def put(self, name: str, offset: int, data: bytes) -> None:
        self._room()
        file = self.files.setdefault(name, bytearray())
        file.extend(bytes(max(0, offset + len(data) - len(file))))
        file[offset : offset + len(data)] = data

    def move(self, name: str, new: str) -> None:
        self._room()
        self.files[new] = self.files.pop(name)
        self.synced.pop(name, None)
        self.synced[new] = bytes(self.files[new])
        self._folder_is_safe(new)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes | None:
        file = self.files.get(name)
        if file is None:
            return None
        return bytes(file[offset : None if length is None else offset + length])

    def size(self, name: str) -> int | None:
        return len(self.files[name]) if name in self.files else None

    def delete(self, name: str) -> None:
        self.files.pop(name, None)
        before = self.synced.pop(name, None)
        if before is not None:
            self.deleted[name] = before

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.files if name.startswith(prefix))

    def save(self, name: str, tree: Tree) -> tuple[str, int]:
        data = codec.dumps(tree)
        self.write(name, data)
        return hashlib.sha256(data).hexdigest(), len(data)

    def load(self, name: str) -> Tree:
        return codec.loads(bytes(self.files[name]))

    def crash(self) -> None:
        """Power is cut: what was not synced is gone, or a part of it is."""
        for name, content in list(self.files.items()):
            safe = self.synced.get(name)
            if safe is None:
                del self.files[name]
                continue
            kept = bytearray(safe)
            if bytes(content[: len(safe)]) == safe:  # something was appended
                kept += content[len(safe) : len(safe) + self.rng.randint(0, len(content) - len(safe))]
            self.files[name], self.synced[name] = kept, bytes(kept)
        for name, before in self.deleted.items():
            if self.rng.random() < 0.5:
                self.files[name], self.synced[name] = bytearray(before), before
        self.deleted.clear()
