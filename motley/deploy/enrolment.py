"""How an agent takes its seat: with an invitation, once.

An invitation is one line that an operator hands over. In it are the broker's address, the certificate that the agent is
to trust, and credentials with which nothing can be done but to enrol. The first key that enrols with it has the seat;
whoever comes with the same invitation and another key is refused.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlparse

import msgspec

import motley
from motley.core.errors import InputError, StateError
from motley.deploy.disks import Disk
from motley.deploy.messages import VERSION, Enrol, Welcome, check_version, decode, encode
from motley.deploy.roster import Roster, Seat
from motley.deploy.wire import Link, Message, Subjects

INVITATIONS = "invitations/"
MOST_CLASSES = 5000


class Invitation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an operator hands over."""

    id: str
    federation: str
    urls: tuple[str, ...]
    server_key: str
    seat: int = -1  # -1: the first that is free
    name: str = ""
    expires: float = 0.0
    ca: str = ""  # PEM; empty where the line is plain
    claims: str = ""  # with which the broker lets it in
    seed: str = ""  # hexadecimal; of the key these claims are for
    certificate: str = ""  # PEM, with its key: where the broker lets in nobody without
    key: str = ""

    def to_line(self) -> str:
        """One line for an e-mail or a chat."""
        place = urlparse(self.urls[0])
        packed = base64.urlsafe_b64encode(encode(self)).decode().rstrip("=")
        return f"motley://{place.hostname}:{place.port}/{self.federation}#{packed}"

    @classmethod
    def from_line(cls, line: str) -> Invitation:
        text = line.strip().partition("#")[2]
        try:
            if not line.strip().startswith("motley://"):
                raise ValueError
            return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=cls)
        except (ValueError, msgspec.MsgspecError):
            raise InputError(
                "This is not an invitation; copy the whole line that 'motley invite' printed (motley://...#...), "
                "in quotes."
            ) from None

    def is_over(self) -> bool:
        return bool(self.expires) and time.time() > self.expires


class Invitations:
    """Those a server has given out, as files, so that others may add to them while it runs."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def add(self, seat: int, name: str, hours: float) -> tuple[str, float]:
        """A new one: its id, and when it ends."""
        made, expires = secrets.token_hex(8), time.time() + hours * 3600.0
        content = {"seat": seat, "name": name, "expires": expires}
        self.disk.write(INVITATIONS + made, json.dumps(content).encode())
        return made, expires

    def get(self, name: str) -> dict[str, Any] | None:
        found = self.disk.read(INVITATIONS + name) if name.isalnum() else None
        content: dict[str, Any] | None = None if found is None else json.loads(found)
        return content

    def all(self) -> dict[str, dict[str, Any]]:
        found = (name.removeprefix(INVITATIONS) for name in self.disk.names(INVITATIONS))
        return {name: content for name in found if (content := self.get(name)) is not None}


class Registrar:
    """The server's desk for those who were invited."""

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        invitations: Invitations,
        roster: Callable[[], Roster],
        happened: Callable[..., None],
        welcome: Callable[[int, Enrol], Welcome],
    ) -> None:
        """``happened`` has an event logged; ``welcome`` is what an agent is told once it sits."""
        self.link, self.subjects, self.invitations = link, subjects, invitations
        self.roster, self.happened, self.welcome = roster, happened, welcome
        self.replaced: Callable[[str], None] = lambda public: None  # told whose seat somebody else has now
        self._waiting: dict[str, tuple[int, Enrol]] = {}  # where to answer -> seat, who
        link.subscribe(subjects.enrol("*"), self._on_enrol)

    def _on_enrol(self, message: Message) -> None:
        if not message.reply.startswith(self.subjects.inbox(message.last, "")):
            return
        try:
            enrol = decode(Enrol, message.data)
            check_version(enrol.v)
            seat = self._seat_for(message.last, enrol)
        except (ValueError, InputError) as error:
            self.link.publish(message.reply, encode(Welcome(VERSION, refused=str(error))))
            return
        if enrol.n == 0:  # it wants to see what it would take part in, and tells nothing of itself
            self.link.publish(message.reply, encode(self.welcome(seat, enrol)))
            return
        self._waiting[message.reply] = seat, enrol
        sitting = self.roster().seats.get(seat)
        told = _seat(enrol, message.last, (self.invitations.get(message.last) or {}).get("name", ""))
        if sitting is not None and sitting.public_key != told.public_key:
            self.replaced(sitting.public_key)
        if sitting is None or sitting != told or seat in self.roster().evicted:
            self.happened("seat", seat, told.to_tree())
        else:
            self.answer()

    def _seat_for(self, invitation: str, enrol: Enrol) -> int:
        """Which seat somebody gets with an invitation; InputError says why none."""
        known = self.invitations.get(invitation)
        if known is None:
            raise InputError("This invitation is not known here; ask for a new one.")
        _check_enrol(enrol)
        sitting = self._sitting(invitation, enrol.public_key)
        if sitting is not None:
            return sitting  # it has not heard the answer, or begins anew
        if time.time() > known["expires"]:
            raise InputError("This invitation has expired; ask for a new one.")
        return self._free_seat(int(known["seat"]))

    def _sitting(self, invitation: str, public_key: str) -> int | None:
        """The seat that was taken with this invitation; InputError where somebody else has it."""
        roster = self.roster()
        for number, seat in roster.seats.items():
            if seat.invitation == invitation:
                if seat.public_key != public_key or number in roster.evicted:
                    raise InputError("This invitation has been used; ask for a new one.")
                return number
        return None

    def _free_seat(self, wanted: int) -> int:
        roster = self.roster()
        taken = {seat for seat, _ in self._waiting.values()} | set(roster.seats)
        free = [seat for seat in range(roster.n_seats) if seat not in taken]
        if wanted < 0 and not free:
            raise InputError(f"All {roster.n_seats} seats of this federation are taken.")
        return wanted if wanted >= 0 else free[0]

    def answer(self) -> None:
        """Welcomes those whose seats are in the log by now."""
        for reply, (seat, enrol) in list(self._waiting.items()):
            sitting = self.roster().seats.get(seat)
            if sitting is not None and sitting.public_key == enrol.public_key:
                del self._waiting[reply]
                self.link.publish(reply, encode(self.welcome(seat, enrol)))


def _check_enrol(enrol: Enrol) -> None:
    """Refuses who cannot take part; the numbers are used as they are told."""
    if motley.__version__.split(".")[:2] != enrol.motley.split(".")[:2]:
        raise InputError(
            f"The server has Motley {motley.__version__}, this agent {enrol.motley}; install the server's version."
        )
    if enrol.n < 0:
        raise InputError("This agent has no samples.")
    told = (*enrol.labels, enrol.seconds_per_epoch, enrol.flops)
    if len(enrol.labels) > MOST_CLASSES or not all(math.isfinite(one) and one >= 0 for one in told):
        raise InputError("What this agent tells of itself holds numbers that cannot be.")


def _seat(enrol: Enrol, invitation: str, invited_as: str) -> Seat:
    return Seat(
        name=(enrol.name or invited_as)[:80],
        public_key=enrol.public_key,
        n=enrol.n,
        labels=enrol.labels,
        seconds_per_epoch=enrol.seconds_per_epoch,
        flops=enrol.flops,
        limited=enrol.limited,
        invitation=invitation,
    )


async def ask_for_seat(link: Link, invitation: Invitation, enrol: Enrol, patience: float = 30.0) -> Welcome:
    """Enrols with an invitation; StateError where the server refuses or does not answer."""
    subjects = Subjects(invitation.federation)
    answer: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
    inbox = subjects.inbox(invitation.id, secrets.token_hex(4))

    def received(message: Message) -> None:
        with suppress(ValueError):
            if not answer.done() and message.data != b"-":
                answer.set_result(decode(Welcome, message.data))

    entry = link.subscribe(inbox, received)
    try:
        for _ in range(max(1, round(patience / 2))):
            link.publish(subjects.enrol(invitation.id), encode(enrol), inbox)
            await asyncio.wait([answer], timeout=2.0)
            if answer.done():
                if answer.result().refused:
                    raise StateError(answer.result().refused)
                return answer.result()
    finally:
        link.unsubscribe(entry)
    raise StateError(f"The server of this federation did not answer within {patience:g} s; is it running?")
