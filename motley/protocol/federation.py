"""What a protocol may ask of the world. The same protocol runs on a virtual clock and on a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any, Protocol

from torch import Tensor

from motley.core.keys import Key
from motley.core.registry import Registry
from motley.core.tasks import Update, Weights
from motley.core.types import Round, Tree


class Task(Protocol):
    """A task on its way: given to a client, not yet taken back."""

    @property
    def client(self) -> int: ...

    @property
    def round(self) -> int: ...

    def done(self) -> bool:
        """Whether its update is there."""

    def result(self) -> Update | None: ...

    @property
    def why(self) -> str:
        """Why it was lost, where that is known: ``holder``, because the model could not be handed on."""

    def over(self) -> bool:
        """Arrived, lost, given up, or held back for a later round: nothing more comes of it in this round."""


class Clock(Protocol):
    """Time, virtual or real."""

    @property
    def now(self) -> float:
        """Seconds since the start."""

    async def sleep(self, seconds: float) -> None:
        """Lets time pass."""

    async def nobody(self) -> None:
        """Waits because nobody could be reached: a while, or until somebody comes."""


class Population(Protocol):
    """Who the clients are."""

    @property
    def n_clients(self) -> int:
        """How many clients there are, present or not."""

    @property
    def clients(self) -> list[int]:
        """Their ids, ascending; a part of a federation has some of them."""

    @property
    def labels(self) -> Tensor | None:
        """Samples per class of each of the clients [N, C], as far as they told; None: they have not."""

    @property
    def profile(self) -> list[float]:
        """Seconds a task of each of the clients takes when nothing goes wrong, as profiling says."""

    def here(self, rnd: Round) -> list[int]:
        """Clients that can be given a task now: they are there and have none; ascending."""


class Federation(Clock, Population, Protocol):
    """The seam between a protocol and the world."""

    options: dict[str, Any]  # the protocol's own settings
    weights: Weights  # the global model
    shown: Weights | None  # what is evaluated, and reported at the end, in place of the global model
    memory: dict[str, Tree]  # what the protocol must remember from round to round; survives a checkpoint

    @property
    def key(self) -> Key:
        """For draws that are the same in every round."""

    def rounds(self, at_most: int | None = None) -> AsyncIterator[Round]:
        """Rounds to come, all or some. Evaluation, records and checkpoints happen between two of them."""

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

    def dispatch(
        self, rnd: Round, clients: Sequence[int], weights: Sequence[Weights] | None = None, *, keep: bool = False
    ) -> list[Task]:
        """Gives each client a task, with the global model or with one of its own.

        keep: the new models stay with their clients, which hand them on without the server seeing them; an update then
        brings its numbers, and its ``model`` is a handle that can be dispatched again.
        """

    def reachable(self, weights: Weights) -> bool:
        """Whether a model can be had now: it is here, or the client that holds it is."""

    async def bring(self, weights: Weights) -> Weights | None:
        """A model that a client holds, with its value; None where it cannot be had."""

    @property
    def tasks(self) -> list[Task]:
        """Everything dispatched and neither taken, lost nor given up, oldest first; survives a checkpoint."""

    async def gather(self, tasks: Sequence[Task], deadline: float | None = None) -> list[Update]:
        """Waits for these tasks, at most ``deadline`` seconds; who is late by then is given up.

        The updates come in the order of dispatch.
        """

    async def arrivals(self, until: float | None = None, at_least: int = 0) -> list[Update]:
        """What came, in order of arrival, by ``until`` (seconds since start) or once ``at_least`` are there.

        Nothing is given up: the rest stays under way. Without ``until`` it waits for ``at_least``, or for all.
        """

    async def news(self, until: float | None = None) -> None:
        """Waits until something new arrives, is lost or is held back, at most ``until`` (seconds since start)."""

    def take(self, tasks: Sequence[Task] | None = None, at_most: int | None = None) -> list[Update]:
        """What has arrived (of these tasks), in order of arrival; the rest stays.

        What becomes of an update is decided in the round in which it is taken: it is merged, handed on or discarded.
        """

    def give_up(self, tasks: Sequence[Task]) -> None:
        """Waits no longer for these; what has arrived of them is thrown away."""

    def discard(self, updates: Sequence[Update]) -> None:
        """Counts updates that came too late to be used."""

    def observe(self, rnd: Round, updates: Sequence[Update]) -> list[Update]:
        """Lets parts learn from updates that are handed on rather than aggregated; accepts the clients' own state.

        Returns the updates that are sound (finite); the others are refused as in `aggregate`.
        """

    def aggregate(self, rnd: Round, updates: Sequence[Update], *, observed: bool = False) -> None:
        """Merges updates into the global model and accepts the clients' own state.

        ``observed``: parts have learned from them before (`observe`), so they are merged and nothing else.
        """

    def preview(self, rnd: Round, updates: Sequence[Update]) -> Weights:
        """The model that aggregating these updates would give; nothing is changed."""

    def note(self, **numbers: Any) -> None:
        """Writes numbers, or lists of them, into this round's record."""

    def split(self, groups: Sequence[Collection[int]]) -> list[Federation]:
        """Several federations on one clock, each with some of the clients, a model and the parts' state of its own.

        What they count joins this federation's next record, and its checkpoints hold them: called again after a
        resumption it gives them as they were.
        """


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
