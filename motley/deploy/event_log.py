"""The log of a deployed run: everything that happened to it from outside, in order. The run is a function of it.

A line is a checksum and a JSON list ``[seq, t, kind, ...]``. What `sync` has returned from survives a power cut; a line
that was cut off in the middle is the last one, was never acted on, and is removed when the log is opened again.
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

    def to_line(self) -> bytes:
        text = json.dumps([self.seq, self.t, self.kind, *self.what], separators=(",", ":")).encode()
        return b"%08x %s\n" % (zlib.crc32(text), text)

    @classmethod
    def from_line(cls, line: bytes) -> Entry | None:
        """None where the line is damaged."""
        check, space, text = line.rstrip(b"\n").partition(b" ")
        try:
            if not space or not line.endswith(b"\n") or int(check, 16) != zlib.crc32(text):
                return None
            seq, t, kind, *what = json.loads(text)
        except ValueError:
            return None
        return cls(seq, t, kind, tuple(what))


class EventLog:
    """Appends entries to segments, each named by the number of its first entry."""

    def __init__(self, disk: Disk, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.disk, self.segment_bytes = disk, segment_bytes
        self.seq = 0  # of the last entry
        self._name = ""
        self._size = 0
        self._unsynced: set[str] = set()
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
            if good < len(data):
                if name != segments[-1]:
                    raise _damaged(name, f"it is damaged after entry {self.seq}")
                self.disk.write(name, data[:good])
            self._name, self._size = name, good

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
        line = entry.to_line()
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
