"""What server and agents say to each other, version 1: small JSON messages; what is large is a blob named by digest.

Unknown fields are ignored and unknown kinds dropped, so that a later Motley may say more; another major version is
refused with a sentence. No time of day crosses the wire, only durations.
"""

from __future__ import annotations

import hashlib
import math
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from motley.core.codec import Content
from motley.core.keys import Key
from motley.core.tasks import Assignment, Dials, Weights

VERSION = 1
DONE = "done"  # the last phase of an agent: it knows that the run has ended
LARGEST = 64 << 10  # bytes of a message; what is larger is not read


class Blob(Struct, frozen=True):
    """A content somewhere: whoever needs it asks a holder for it."""

    digest: str
    size: int
    holders: tuple[str, ...] = ("s",)  # the server, or seats in the order in which to try


class Task(Struct, frozen=True, omit_defaults=True):
    """Everything that decides the outcome of a task."""

    run: str  # identity of the run
    client: int
    round: int
    name: str  # in the server's books: unique within a run
    start: Blob
    dials: dict[str, dict[str, float | str]]
    epochs: float
    floor: float
    partial: bool
    lr: float
    key: str  # 16 hexadecimal digits
    down: Blob | None = None  # what parts send beside the model
    basis: str = ""  # the task after which what the client keeps was accepted last
    quickest: float = 0.0  # operations per second of the fastest device that was told of; 0: nobody has told
    keep: bool = False  # the new model stays with the client, until somebody is sent to fetch it
    phase: str = ""  # of a recipe with phases

    @property
    def id(self) -> str:
        """A digest of all of it but where the bytes are to be had."""
        bare = msgspec.structs.replace(
            self,
            start=Blob(self.start.digest, self.start.size),
            down=None if self.down is None else Blob(self.down.digest, self.down.size),
        )
        return hashlib.blake2b(encode(bare), digest_size=16).hexdigest()


class Offer(Struct, frozen=True, omit_defaults=True):
    """A result that an agent keeps until the server says that it is safe."""

    task: str
    digest: str
    size: int
    seconds: float = 0.0
    sig: str = ""  # of the agent, over task, digest and size


class Up(Struct, omit_defaults=True):
    """What an agent does and has: said when that changes, and every few seconds."""

    v: int
    client: int
    epoch: int = 0  # the newest server it has heard of
    doing: tuple[str, ...] = ()  # tasks it works on or will
    outbox: tuple[Offer, ...] = ()
    phase: str = "idle"  # fetching, training, offering, asleep, done
    refuses: tuple[tuple[str, str], ...] = ()  # tasks it will not do, and why
    forgot: str = ""  # the task whose kept state it no longer has
    says: str = ""  # a sentence when something is wrong here
    renew: bool = False  # its credentials end soon


class Down(Struct, omit_defaults=True):
    """What the server tells one agent."""

    v: int
    kind: str  # task, receipt, allow, credentials
    epoch: int
    id: str = ""
    task: Task | None = None
    why: str = ""  # of a receipt: kept or closed
    asker: str = ""  # of `allow`: who may fetch what
    digest: str = ""
    credentials: str = ""
    sig: str = ""


class Call(Struct, omit_defaults=True):
    """What the server tells everybody: it is here, in this epoch; or the run has ended."""

    v: int
    epoch: int
    ended: bool = False
    why: str = ""
    sig: str = ""


class Enrol(Struct, omit_defaults=True):
    """An agent takes a seat."""

    v: int
    public_key: str
    name: str
    motley: str
    n: int
    labels: tuple[float, ...] = ()  # samples per class; empty where it does not tell
    seconds_per_epoch: float = 0.0
    flops: float = 0.0
    limited: bool = False
    broker_key: str = ""  # the public key that the broker is to know it by
    csr: str = ""  # asks for a certificate, where agents must have one


class Welcome(Struct, omit_defaults=True):
    """What an agent needs to know from then on; `refused` says why it may not."""

    v: int
    seat: int = -1
    recipe: str = ""  # TOML
    identity: str = ""
    server_key: str = ""
    credentials: str = ""
    certificate: str = ""
    beat: float = 5.0
    lease: float = 60.0
    largest: int = 0  # bytes of a blob
    layers: tuple[str, ...] = ()  # of the model, each as a name and a shape
    classes: int = 0  # of all clients together; 0 where targets are no classes
    refused: str = ""


_ENCODER = msgspec.json.Encoder(order="deterministic")
T = TypeVar("T", bound=Struct)


def encode(message: Struct) -> bytes:
    """The bytes of a message, the same in every process."""
    return _ENCODER.encode(message)


class MessageError(ValueError):
    """Bytes that are no message of the kind that was expected, or too many of them."""


@cache
def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind)


def decode(kind: type[T], data: bytes) -> T:
    """A message of this kind; `MessageError` where the bytes are none."""
    if len(data) > LARGEST:
        raise MessageError(f"it has {len(data)} bytes, more than {LARGEST}")
    try:
        return _decoder(kind).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(str(error)) from None


def check_version(told: int) -> None:
    """Refuses another major version with a sentence."""
    if told != VERSION:
        raise MessageError(
            f"it speaks version {told} of the deployment's messages, this Motley version {VERSION}; "
            "install the same Motley at both ends"
        )


# ------------------------------------------------------------------ numbers that JSON cannot hold
def to_wire(dials: Dials) -> dict[str, dict[str, float | str]]:
    return {part: {key: _told(value) for key, value in own.items()} for part, own in dials.items()}


def from_wire(dials: dict[str, dict[str, float | str]]) -> Dials:
    return {part: {key: float(value) for key, value in own.items()} for part, own in dials.items()}


def _told(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)


def task_of(a: Assignment, **more: Any) -> Task:
    """An assignment as it is sent; ``more`` are the fields that it does not have."""
    return Task(
        client=a.client,
        round=a.round,
        name=a.id,
        dials=to_wire(a.dials),
        epochs=a.epochs,
        floor=a.floor,
        partial=a.partial,
        lr=a.lr,
        key=f"{a.key.value:016x}",
        **more,
    )


def assignment_of(task: Task, start: Weights, down: Content) -> Assignment:
    """A task as it is trained."""
    return Assignment(
        id=task.name,
        client=task.client,
        round=task.round,
        start=start,
        down=down,
        dials=from_wire(task.dials),
        epochs=task.epochs,
        floor=task.floor,
        partial=task.partial,
        lr=task.lr,
        key=Key(int(task.key, 16)),
    )
