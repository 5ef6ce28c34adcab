"""The line between a process and the broker: messages go out and come in, and may be lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol


class Message(NamedTuple):
    """Something that came in."""

    subject: str
    data: bytes
    reply: str = ""

    @property
    def last(self) -> str:
        """The last word of its subject."""
        return self.subject.rsplit(".", 1)[-1]


Receive = Callable[[Message], None]


class Link(Protocol):
    """A connection that mends itself. Nothing here waits."""

    hooks: set[Callable[[], None]]  # called when the line is back after it was cut

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Sends; what is sent may be lost."""

    def subscribe(self, pattern: str, receive: Receive) -> Any:
        """Calls ``receive`` with whatever comes in on subjects of this pattern."""

    def unsubscribe(self, entry: Any) -> None: ...


async def happens(event: asyncio.Event, seconds: float) -> bool:
    """Waits for an event, at most so long; whether it has come."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def end(task: asyncio.Task[Any]) -> None:
    """Ends a task and waits for that; whoever ends this one meanwhile is heard, too, which `await task` would hide."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # seen


class Subjects(NamedTuple):
    """The names of a federation's subjects. The broker vouches for the sender's word in each of them.

    ``up.<seat>`` agent to server, ``down.<seat>`` server to agent, ``all`` server to everybody;
    ``get.<holder>.<asker>`` asks for bytes, which come on ``in.<asker>.<token>.<offset>`` or, for many at once, on
    ``fan.<digest>.<offset>``; ``enrol.<invitation>`` is for who was invited.
    """

    federation: str

    def _of(self, *words: str) -> str:
        return ".".join(("mo1", self.federation, *words))

    def up(self, seat: str) -> str:
        return self._of("up", seat)

    def down(self, seat: str) -> str:
        return self._of("down", seat)

    @property
    def all(self) -> str:
        return self._of("all")

    def get(self, holder: str, asker: str) -> str:
        return self._of("get", holder, asker)

    def inbox(self, asker: str, *words: str) -> str:
        return self._of("in", asker, *words)

    def fan(self, digest: str, offset: str) -> str:
        return self._of("fan", digest, offset)

    def enrol(self, invitation: str) -> str:
        return self._of("enrol", invitation)


SERVER = "s"
"""The server's word where seats have their numbers."""
