"""What a protocol may ask of the world. The same protocol runs on a virtual clock and on a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from motley.core.registry import Registry
from motley.core.types import Round, Tree


@dataclass(frozen=True)
class Weights:
    """A handle to a model somewhere: the server's, or one that a client holds and can hand on."""

    value: Tensor  # [P]


class Arrival(NamedTuple):
    """One client's update as it reached the server."""

    client: int
    round: int  # round it was trained in
    start: Weights
    delta: Tensor  # [P]
    trained: Tensor  # [L]
    extras: dict[str, Tree]
    own: dict[str, Tree]
    n: float
    loss: Tensor  # [], where it was computed
    steps: int
    epochs: float
    lr: float
    duration: float
    width: float | None = None  # share of each hidden layer that was trained; None: all

    @property
    def model(self) -> Weights:
        """The client's model as it went over the wire."""
        return Weights(self.start.value + self.delta)


class Flight(Protocol):
    """A task on its way: dispatched, not yet delivered."""

    client: int
    round: int

    def done(self) -> bool: ...

    def result(self) -> Arrival | None: ...

    def over(self) -> bool:
        """Arrived, lost, given up, or held back for a later round: nothing more comes of it in this round."""


class Federation(Protocol):
    """The seam between a protocol and a clock."""

    options: dict[str, Any]  # the protocol's own settings
    weights: Weights  # the global model
    shown: Weights | None  # what is evaluated, and reported at the end, in place of the global model
    memory: dict[str, Tree]  # what the protocol must remember from round to round; survives a checkpoint

    @property
    def n_clients(self) -> int:
        """How many clients there are, present or not."""

    @property
    def profile(self) -> list[float]:
        """Seconds a task of each client takes when nothing goes wrong, as profiling says."""

    @property
    def now(self) -> float:
        """Seconds since the start."""

    def rounds(self) -> AsyncIterator[Round]:
        """Rounds to come. Evaluation, records and checkpoints happen between two of them."""

    def select(
        self,
        rnd: Round,
        count: int | None = None,
        *,
        among: Collection[int] | None = None,
        without: Collection[int] = (),
        waiting: bool = False,
    ) -> list[int]:
        """Who trains: up to ``count`` clients (the round's cohort) that are there and have no task.

        among: only these; without: not these. waiting: also those whose last update is still held back on its way
        (only where parts keep nothing on clients, because two updates of one client would disagree about it).
        """

    def dispatch(self, rnd: Round, clients: Sequence[int], weights: Sequence[Weights] | None = None) -> list[Flight]:
        """Sends each client its task, with the global model or with one of its own."""

    @property
    def flights(self) -> list[Flight]:
        """Everything dispatched and neither delivered nor given up, oldest first; survives a checkpoint."""

    async def gather(self, flights: Sequence[Flight], deadline: float | None = None) -> list[Arrival]:
        """Waits for these flights, at most ``deadline`` seconds; who is late by then is given up.

        The arrivals come in the order of dispatch.
        """

    async def arrivals(self, until: float | None = None, at_least: int = 0) -> list[Arrival]:
        """What came, in order of arrival, by ``until`` (seconds since start) or once ``at_least`` are there.

        Nothing is given up: the rest stays in flight. Without ``until`` it waits for ``at_least``, or for all.
        """

    async def news(self, until: float | None = None) -> None:
        """Waits until something new arrives, is lost or is held back, at most ``until`` (seconds since start)."""

    def take(self, flights: Sequence[Flight] | None = None, at_most: int | None = None) -> list[Arrival]:
        """What has arrived (of these flights), in order of arrival; the rest stays."""

    def give_up(self, flights: Sequence[Flight]) -> None:
        """Waits no longer for these; what has arrived of them is thrown away."""

    def discard(self, arrivals: Sequence[Arrival]) -> None:
        """Counts arrivals that came too late to be used."""

    def observe(self, rnd: Round, arrivals: Sequence[Arrival]) -> list[Arrival]:
        """Lets parts learn from arrivals that are handed on rather than aggregated; accepts the clients' own state.

        Returns the arrivals that are sound (finite); the others are refused as in `aggregate`.
        """

    def aggregate(self, rnd: Round, arrivals: Sequence[Arrival], *, observed: bool = False) -> None:
        """Merges arrivals into the global model and accepts the clients' own state.

        ``observed``: parts have learned from them before (`observe`), so they are merged and nothing else.
        """

    def preview(self, rnd: Round, arrivals: Sequence[Arrival]) -> Weights:
        """The model that aggregating these arrivals would give; nothing is changed."""

    def note(self, **numbers: Any) -> None:
        """Writes numbers, or lists of them, into this round's record."""

    async def sleep(self, seconds: float) -> None:
        """Lets time pass."""


ProtocolFunction = Callable[[Federation], Awaitable[None]]

PROTOCOLS: Registry[Awaitable[None]] = Registry("protocol")
"""``punctual``: updates are merged in the round they were trained in. ``options``: names that are read from the
federation instead of being arguments."""


def option_names(protocol: str) -> list[str] | None:
    """The options a protocol knows; None where it has no arguments and does not say, so that it may read any."""
    entry = PROTOCOLS[protocol]
    if not entry.parameters and "options" not in entry.meta:
        return None
    return [*entry.parameters, *entry.meta.get("options", ())]
