"""What flies on the virtual clock: tasks on their way, what became of them, and the updates they turn into."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from motley.client.trainer import Outcome
from motley.core.types import Round, Updates, sent, stack_rows, stack_trees
from motley.protocol.federation import Arrival
from motley.run.charges import Ticket
from motley.run.clock import VirtualLoop
from motley.run.executors.base import FactsRow


class Schedule(NamedTuple):
    """How long and how hard a run trains."""

    rounds: int
    cohort: int
    epochs: float
    lr: float
    lr_decay: float = 1.0  # lr in round t is lr * lr_decay ** (t - 1)
    deadline: float | None = None
    on_bad_update: str = "stop"  # or "drop"


@dataclass
class Tally:
    """What happened since the last record."""

    participants: list[int] = field(default_factory=list)
    arrived: int = 0
    lost: int = 0
    late: int = 0
    concluded: int = 0  # tasks that ended: arrived, lost or given up
    stragglers: int = 0  # of these, who sent less than was asked for
    dropouts: int = 0  # of these, who sent nothing
    stale: list[int] = field(default_factory=list)  # ages of aggregated updates, where they can be old
    bytes_down: int = 0
    bytes_up: int = 0
    losses: list[tuple[Tensor, float]] = field(default_factory=list)  # training loss and samples of each arrival
    notes: dict[str, Any] = field(default_factory=dict)  # what the protocol or a measurement adds to the record

    def train_loss(self) -> float | None:
        """The mean over samples, without losses that are not finite; waits for the device that computes them."""
        values = stack_rows([loss for loss, _ in self.losses]).tolist() if self.losses else []
        found = [(value, n) for value, (_, n) in zip(values, self.losses, strict=True) if math.isfinite(value)]
        samples = sum(n for _, n in found)
        return sum(value * n for value, n in found) / samples if samples else None


class Event(NamedTuple):
    """Something that happened to a task: dispatch, arrive, hold, lose, give up; or an aggregation (client -1)."""

    time: float
    what: str
    client: int
    round: int


class Aloft(NamedTuple):
    """A flight as a checkpoint holds it; `held` and `landed` are its places in those queues, if it is there."""

    ticket: Ticket
    finish: float | None
    held: int | None = None
    landed: int | None = None
    landed_at: float | None = None


class Flying:
    """A flight on the virtual clock."""

    def __init__(self, ticket: Ticket, number: int) -> None:
        self.ticket = ticket
        self.number = number  # counts dispatches: the order of flights that finish at the same time
        self.client = ticket.client
        self.round = ticket.round
        self.outcome: Outcome | None = None
        self.facts: FactsRow | None = None  # what the client was told when it trained
        self.settled: bool | None = None  # True: arrived, False: lost or held back
        self.awaited: Countdown | None = None  # who waits for it to settle
        self.arrival: Arrival | None = None
        self.finish: float | None = None
        self.landed_at: float | None = None
        self.given_up = False
        self.held = False  # its transmission is delayed; the device is free

    def done(self) -> bool:
        return self.settled is not None and self.arrival is not None

    def over(self) -> bool:
        return self.settled is not None or self.given_up

    def result(self) -> Arrival | None:
        return self.arrival


class Flock:
    """Flights in the order in which they came; one is found and removed at once, however many there are."""

    def __init__(self) -> None:
        self._flights: dict[int, Flying] = {}

    def append(self, flight: Flying) -> None:
        self._flights[flight.number] = flight

    def remove(self, flight: Flying) -> None:
        del self._flights[flight.number]

    def clear(self) -> None:
        self._flights.clear()

    def __contains__(self, flight: Flying) -> bool:
        return self._flights.get(flight.number) is flight

    def __iter__(self) -> Iterator[Flying]:
        return iter(self._flights.values())

    def __len__(self) -> int:
        return len(self._flights)


def stack(rnd: Round, arrivals: Sequence[Arrival]) -> Updates:
    """Arrivals as the server sees them: stacked, in their order."""
    first = arrivals[0].start.value
    if all(arrival.start.value is first for arrival in arrivals):
        start = first.expand(len(arrivals), -1)
    else:
        start = torch.stack([arrival.start.value for arrival in arrivals])
    ids, number = sent(torch.tensor([[a.client for a in arrivals], [a.round for a in arrivals]]), first.device)
    rows = [(a.n, a.steps, a.epochs, a.lr, a.duration, a.width or 0.0, rnd.number - a.round) for a in arrivals]
    table = torch.tensor(rows, dtype=torch.float32).T.contiguous()
    n, steps, epochs, lr, duration, width, age = sent(table, first.device)
    trained = torch.stack([arrival.trained for arrival in arrivals])
    return Updates(
        ids=ids,
        round=number,
        age=age,
        start=start,
        delta=stack_rows([arrival.delta for arrival in arrivals]),
        trained=trained if trained.is_cuda else sent(trained, first.device),
        n=n,
        loss=stack_rows([arrival.loss for arrival in arrivals]).to(first.device),
        steps=steps,
        epochs=epochs,
        lr=lr,
        duration=duration,
        extras={name: stack_trees([arrival.extras[name] for arrival in arrivals]) for name in arrivals[0].extras},
        width=None if arrivals[0].width is None else width,
        whole=None if trained.is_cuda else bool((trained == 1).all()),
    )


def trained_layers(flight: Flying) -> Tensor | None:
    return None if flight.outcome is None else flight.outcome.trained


def silent(ticket: Ticket) -> bool:
    """Whether nothing will come of a task."""
    return ticket.fate.lost or ticket.done <= 0


def resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def settle(flight: Flying, value: bool) -> None:
    if flight.settled is None:
        flight.settled = value
        if flight.awaited is not None:
            flight.awaited.one_less()


class Countdown:
    """Waits until several flights have settled."""

    def __init__(self, flights: Sequence[Flying], loop: VirtualLoop) -> None:
        pending = [flight for flight in flights if flight.settled is None]
        for flight in pending:
            flight.awaited = self
        self._left, self._loop = len(pending), loop
        self._done: asyncio.Future[None] = loop.create_future()

    def one_less(self) -> None:
        self._left -= 1
        if self._left == 0:
            resolve(self._done)

    async def wait(self, seconds: float | None) -> None:
        """Until all have settled, at most so long."""
        if self._left:
            if seconds is not None:
                self._loop.call_later(seconds, resolve, self._done)
            await self._done


def work(epochs: float, floor: float, affordable: float, partial: bool) -> tuple[float, float]:
    """Epochs a device spends, and epochs whose result it sends (0: nothing)."""
    enough = affordable * (1 + 1e-6)  # plans are float32
    if enough >= epochs:
        return epochs, epochs
    if enough >= floor:
        return affordable, affordable if partial else floor
    return affordable, 0.0
