"""The log of a deployed run: everything that happened to it from outside, in order. The run is a function of it.

A line is a checksum, the number of the last entry that was safe when it was written, and a JSON list ``[seq, t, kind,
...]``. What `sync` has returned from survives a power cut; what was written after that may be damaged, was never acted
on, and is removed when the log is opened again. Damage to what was safe, as later lines tell, is refused.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from motley.core.errors import StateError
from motley.deploy.disks import Disk

FOLDER = "log/"
SEGMENT_BYTES = 4 << 20


class Entry(NamedTuple):
    """Something that happened, ``t`` seconds after the run's start."""

    seq: int
    t: float
    kind: str  # epoch, seat, evict, here, gone, start, phase, arrive, lose, forgot, tick, order, end
    what: tuple[Any, ...] = ()

    def to_line(self, safe: int = 0) -> bytes:
        """``safe``: the last entry that is on the disk already."""
        listed = json.dumps([self.seq, self.t, self.kind, *self.what], separators=(",", ":"))
        text = f"{safe} {listed}".encode()
        return b"%08x %s\n" % (zlib.crc32(text), text)

    @classmethod
    def from_line(cls, line: bytes) -> Entry | None:
        """None where the line is damaged."""
        found = _read(line)
        return None if found is None else found[0]


def _read(line: bytes) -> tuple[Entry, int] | None:
    """An entry, and the last one that was safe when it was written."""
    check, space, text = line.rstrip(b"\n").partition(b" ")
    try:
        if not space or not line.endswith(b"\n") or int(check, 16) != zlib.crc32(text):
            return None
        safe, _, listed = text.partition(b" ")
        seq, t, kind, *what = json.loads(listed)
        return Entry(seq, t, kind, tuple(what)), int(safe)
    except ValueError:
        return None


class EventLog:
    """Appends entries to segments, each named by the number of its first entry."""

    def __init__(self, disk: Disk, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.disk, self.segment_bytes = disk, segment_bytes
        self.seq = 0  # of the last entry
        self._name = ""
        self._size = 0
        self._unsynced: set[str] = set()
        self._safe = 0  # the last entry that `sync` has made safe
        self._open()

    def _open(self) -> None:
        """Finds the end, and cuts off what a crash left unfinished there."""
        segments = self.disk.names(FOLDER)
        for name in segments:
            data = self.disk.read(name) or b""
            good = 0
            for entry, end in _lines(data):
                if entry.seq != self.seq + 1 and self.seq:
                    raise _damaged(name, f"entry {entry.seq} follows entry {self.seq}")
                self.seq, good = entry.seq, end
            self._name, self._size = name, good
            if good < len(data):
                self._cut_off(data[:good], data[good:], name == segments[-1])
        self._safe = self.seq

    def _cut_off(self, good: bytes, rest: bytes, at_the_end: bool) -> None:
        """Removes a damaged line at the end and what follows it, where nothing of that was safe."""
        read = filter(None, map(_read, rest.splitlines(keepends=True)))
        if not at_the_end or any(safe > self.seq for _, safe in read):
            raise _damaged(self._name, f"the entry after {self.seq} is damaged, though it was on the disk")
        self.disk.write(self._name, good)

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """What was logged, in order, from the entry after this one on."""
        segments = self.disk.names(FOLDER)
        firsts = [int(name.removeprefix(FOLDER)) for name in segments]
        for i, name in enumerate(segments):
            if i + 1 < len(segments) and firsts[i + 1] <= after + 1:
                continue
            for entry, _ in _lines(self.disk.read(name) or b""):
                if entry.seq > after:
                    yield entry

    def append(self, t: float, kind: str, *what: Any) -> Entry:
        """Writes an entry; it counts once `sync` has returned."""
        entry = Entry(self.seq + 1, t, kind, what)
        line = entry.to_line(self._safe)
        if not self._name or self._size + len(line) > self.segment_bytes:
            self._name, self._size = f"{FOLDER}{entry.seq:012d}", 0
        self.disk.append(self._name, line)
        self.seq = entry.seq
        self._size += len(line)
        self._unsynced.add(self._name)
        return entry

    def sync(self) -> None:
        """Everything appended so far is safe when this returns."""
        for name in sorted(self._unsynced):
            self.disk.sync(name)
        self._unsynced.clear()
        self._safe = self.seq


def _lines(data: bytes) -> Iterator[tuple[Entry, int]]:
    """The whole entries at the beginning of some bytes, each with where it ends."""
    end = 0
    for line in data.splitlines(keepends=True):
        entry = Entry.from_line(line)
        if entry is None:
            return
        end += len(line)
        yield entry, end


def _damaged(name: str, why: str) -> StateError:
    return StateError(f"The log of this run cannot be used: in {name} {why}; restore the folder from a copy.")
