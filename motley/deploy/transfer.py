"""Bytes from whoever holds them to whoever asks: in pieces, with a window, asked for again, checked, resumable.

The receiver drives. It asks for pieces, a few at a time, asks again for what does not come, and checks the digest of
the whole before it looks inside. So a slow receiver slows nobody else, a line that was cut costs what was on its way,
and a process that was killed goes on where it stopped. Where several ask for the same pieces at the same time, a holder
answers all of them with one message that the broker copies; who misses such a message asks for the piece itself.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import NamedTuple, TypeVar

from motley.deploy.disks import Disk, digest_of_file
from motley.deploy.wire import Link, Message, Subjects, happens

CHUNK = 512 << 10
WINDOW, WIDEST = 4, 16  # pieces asked for at a time, at first and at most
PATIENCE = 1.0  # seconds after which a piece is asked for again
TRIES = 6  # silences in a row after which a holder is gone
HAVE_EVERY = 64  # pieces after which what is there is noted on disk
SHARED_SECONDS = 2.0  # askers of one digest within so long are served together


class GoneError(Exception):
    """The holder does not answer, has not what is asked for, or gave something else."""


class NotYoursError(GoneError):
    """The holder answers that it has it not, or may not give it: perhaps it has not been told yet."""


T = TypeVar("T")
Find = Callable[[str], str | None]
"""digest -> the name of the file that holds it"""
Allowed = Callable[[str, str], bool]
"""(asker, digest) -> whether it may have it"""


class Request(NamedTuple):
    """What an asker wants."""

    digest: str
    offset: int
    length: int

    def to_bytes(self) -> bytes:
        return f"{self.digest} {self.offset} {self.length}".encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Request | None:
        try:
            digest, offset, length = data.decode("ascii").split()
            made = cls(digest, int(offset), int(length))
        except ValueError:
            return None
        good = digest.isalnum() and made.offset >= 0 and 0 < made.length <= CHUNK
        return made if good and len(data) < 200 else None


class Holder:
    """Answers requests from files."""

    def __init__(
        self, link: Link, subjects: Subjects, me: str, disk: Disk, find: Find, allowed: Allowed, fans: bool = False
    ) -> None:
        """``fans``: several askers of the same pieces are served together."""
        self.link, self.subjects, self.disk, self.find, self.allowed = link, subjects, disk, find, allowed
        self.bytes_sent = 0
        self._fan = Fan() if fans else None
        link.subscribe(subjects.get(me, "*"), self._answer)

    def _answer(self, message: Message) -> None:
        asker = message.last
        if not message.reply.startswith(self.subjects.inbox(asker, "")):
            return  # the answer would go to somebody else: that is no request
        wanted = Request.from_bytes(message.data)
        if wanted is None:
            return
        name = self.find(wanted.digest) if self.allowed(asker, wanted.digest) else None
        if name is None:
            self.link.publish(message.reply, b"-")
            return
        way = "alone" if self._fan is None else self._fan.way(wanted, asker, asyncio.get_running_loop().time())
        data = b"" if way == "on its way" else self.disk.read(name, wanted.offset, wanted.length)
        if data is None:
            self.link.publish(message.reply, b"-")
        elif way != "on its way":
            self.bytes_sent += len(data)
            to = self.subjects.fan(wanted.digest, str(wanted.offset)) if way == "together" else message.reply
            self.link.publish(to, b"+" + data)


class Fan:
    """Who asks for the same thing at the same time, and what was sent to all of them just now."""

    LAG = 64  # pieces that the last of them may be behind the first

    def __init__(self) -> None:
        self._askers: dict[str, dict[str, tuple[float, int]]] = {}  # digest -> asker -> when, and for which piece
        self._sent: dict[tuple[str, int], tuple[float, frozenset[str]]] = {}  # piece -> when, and who listened then

    def way(self, wanted: Request, asker: str, now: float) -> str:
        """How a piece goes to an asker: ``alone``, ``together`` with others, or it is ``on its way`` already."""
        askers = self._askers.setdefault(wanted.digest, {})
        askers[asker] = now, wanted.offset
        for name in [name for name, (when, _) in askers.items() if now - when > SHARED_SECONDS]:
            del askers[name]
        when, listened = self._sent.get((wanted.digest, wanted.offset), (-1e9, frozenset[str]()))
        if now - when < PATIENCE / 2:
            return "on its way" if asker in listened else "alone"  # who came later has missed it
        near = [offset for _, offset in askers.values() if abs(offset - wanted.offset) <= self.LAG * CHUNK]
        if len(near) < 2:
            return "alone"
        self._note(wanted, now, frozenset(askers))
        return "together"

    def _note(self, wanted: Request, now: float, askers: frozenset[str]) -> None:
        self._sent[wanted.digest, wanted.offset] = now, askers
        if len(self._sent) > 4096:
            self._sent = {key: one for key, one in self._sent.items() if now - one[0] < PATIENCE}


class Partial:
    """What has come so far of a blob, in a file; which pieces these are is noted from time to time."""

    def __init__(self, disk: Disk, digest: str, size: int) -> None:
        self.disk, self.digest, self.size = disk, digest, size
        self.name, self._noted = f"parts/{digest}", f"parts/{digest}.have"
        self.have: set[int] = set()
        self._since = 0
        with suppress(ValueError, TypeError, KeyError):
            told = json.loads(disk.read(self._noted) or b"null")
            if told["size"] == size and told["chunk"] == CHUNK and disk.size(self.name) is not None:
                self.have = {int(offset) for offset in told["have"]}

    def wanted(self) -> list[int]:
        """Offsets of the pieces that are missing."""
        return [offset for offset in range(0, self.size, CHUNK) if offset not in self.have]

    def length(self, offset: int) -> int:
        return min(CHUNK, self.size - offset)

    def put(self, offset: int, data: bytes) -> None:
        self.disk.put(self.name, offset, data)
        self.have.add(offset)
        self._since += 1
        if self._since >= HAVE_EVERY:
            self._since = 0
            self.disk.sync(self.name)
            told = {"size": self.size, "chunk": CHUNK, "have": sorted(self.have)}
            self.disk.write(self._noted, json.dumps(told).encode())

    def finish(self, name: str) -> None:
        """Checks the whole, and gives it its name."""
        if self.size == 0:
            self.disk.put(self.name, 0, b"")
        if digest_of_file(self.disk, self.name) != self.digest:
            self.drop()
            raise GoneError("what came is not what its digest says")
        self.disk.move(self.name, name)
        self.disk.delete(self._noted)

    def drop(self) -> None:
        self.have.clear()
        self.disk.delete(self.name)
        self.disk.delete(self._noted)


_tokens = itertools.count()
jitter = random.Random(0)


class Fetch:
    """One transfer: asks a holder for a blob and fills a file with it."""

    def __init__(self, link: Link, subjects: Subjects, me: str, holder: str, partial: Partial, fans: bool) -> None:
        self.link, self.partial, self.holder = link, partial, holder
        self.source = subjects.get(holder, me)
        self.inbox = subjects.inbox(me, f"{next(_tokens)}")
        self.todo = partial.wanted()[::-1]
        self.waiting: dict[int, float] = {}  # offset -> when it was asked for
        self.window = WINDOW
        self.refused = False
        self.failure: OSError | None = None
        self.received = 0
        self._woken = asyncio.Event()
        self._entries = [link.subscribe(f"{self.inbox}.*", self._on)]
        if fans:
            self._entries.append(link.subscribe(subjects.fan(partial.digest, "*"), self._on))
        link.hooks.add(self._again)

    def close(self) -> None:
        for entry in self._entries:
            self.link.unsubscribe(entry)
        self.link.hooks.discard(self._again)

    def _on(self, message: Message) -> None:
        word = message.last
        offset = int(word) if word.isdigit() else -1
        data = message.data
        if data[:1] == b"-":
            self.refused = offset in self.waiting or self.refused
        elif offset not in self.partial.have and 0 <= offset < self.partial.size and offset % CHUNK == 0:
            try:
                self._take(offset, data[1:])
            except OSError as error:
                self.failure = error
        self._woken.set()

    def _take(self, offset: int, data: bytes) -> None:
        if len(data) != self.partial.length(offset):
            return
        self.partial.put(offset, data)
        self.received += len(data)
        if self.waiting.pop(offset, None) is not None and self.window < WIDEST:
            self.window += 1

    def _again(self) -> None:
        """The line was cut and is back: what was on its way is lost, so nobody waits for a timer."""
        self.todo.extend(self.waiting)
        self.waiting.clear()
        self._woken.set()

    async def run(self) -> None:
        """Until all is there; `GoneError` where the holder is silent or refuses."""
        silent = 0
        while True:
            self._ask()
            if not self.waiting:
                return
            before = len(self.partial.have)
            patience = PATIENCE * (0.7 + 0.6 * jitter.random())  # never in step with what disturbs it
            self._woken.clear()
            await happens(self._woken, patience)
            if self.failure is not None:
                raise self.failure
            if self.refused:
                raise NotYoursError(f"{self.holder} has it not, or may not give it")
            late, moved = self._overdue(patience), len(self.partial.have) > before
            silent = 0 if moved else silent + late
            if silent > TRIES:
                raise GoneError(f"{self.holder} does not answer")

    def _ask(self) -> None:
        now = asyncio.get_running_loop().time()
        while self.todo and len(self.waiting) < self.window:
            offset = self.todo.pop()
            if offset in self.partial.have:
                continue
            self.waiting[offset] = now
            request = Request(self.partial.digest, offset, self.partial.length(offset))
            self.link.publish(self.source, request.to_bytes(), f"{self.inbox}.{offset}")

    def _overdue(self, patience: float) -> bool:
        """Puts what did not come in time back among what is to be asked for; whether there was any."""
        now = asyncio.get_running_loop().time()
        late = [offset for offset, when in self.waiting.items() if now - when >= patience * 0.99]
        for offset in late:
            del self.waiting[offset]
            self.todo.append(offset)
        if late:
            self.window = max(WINDOW // 2, self.window // 2)
        return bool(late)


async def until_told(bring: Callable[[], Awaitable[T]]) -> T:
    """Asks again for a while: who is to hand something on may hear of it later than the one who asks for it."""
    for wait in (0.1, 0.3, 1.0, 2.0):
        try:
            return await bring()
        except NotYoursError:
            await asyncio.sleep(wait)
    return await bring()


async def fetch(
    link: Link,
    subjects: Subjects,
    me: str,
    holders: Collection[str],
    digest: str,
    size: int,
    *,
    disk: Disk,
    name: str,
    limit: int,
    fans: bool = False,
    told: Callable[[int], None] | None = None,
) -> None:
    """Brings a blob into a file, from the first holder that has it; `GoneError` where none does."""
    if not 0 <= size <= limit:
        raise GoneError(f"it has {size} bytes, more than the {limit} that may come")
    partial = Partial(disk, digest, size)
    why = GoneError("nobody holds it")
    for holder in holders:
        one = Fetch(link, subjects, me, holder, partial, fans)
        try:
            await one.run()
            partial.finish(name)
        except GoneError as error:
            why = error
            continue
        finally:
            one.close()
            if told is not None:
                told(one.received)
        return
    raise why
