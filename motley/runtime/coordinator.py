"""A federation as protocols see it: a ledger that keeps the books, and a carrier that knows time and place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from motley.core.errors import InputError
from motley.core.keys import Key
from motley.core.tasks import Delivery, Update, Weights
from motley.core.types import Round, Tree
from motley.protocol.carrier import Carrier
from motley.protocol.federation import Federation, Task
from motley.server.ledger import Ledger
from motley.server.tally import Tally
from motley.server.task_book import BookedTask

AfterRound = Callable[[Round, Tally], None]
NewLedger = Callable[[str, Weights], Ledger]
"""(name, first model) -> the ledger of a part of a federation"""


class Standing:
    """What a protocol reads and writes without waiting."""

    def __init__(self, ledger: Ledger, carrier: Carrier, clients: Sequence[int] | None) -> None:
        self.ledger, self.carrier = ledger, carrier
        self._clients = None if clients is None else sorted(clients)

    @property
    def weights(self) -> Weights:
        return self.ledger.weights

    @weights.setter
    def weights(self, value: Weights) -> None:
        self.ledger.weights = value

    @property
    def shown(self) -> Weights | None:
        return self.ledger.shown

    @shown.setter
    def shown(self, value: Weights | None) -> None:
        self.ledger.shown = value

    @property
    def memory(self) -> dict[str, Tree]:
        return self.ledger.memory

    @memory.setter
    def memory(self, value: dict[str, Tree]) -> None:
        self.ledger.memory = value

    @property
    def key(self) -> Key:
        return self.ledger.key.fold("protocol")

    @property
    def clients(self) -> list[int]:
        return list(range(self.carrier.n_clients)) if self._clients is None else self._clients

    @property
    def n_clients(self) -> int:
        return self.carrier.n_clients if self._clients is None else len(self._clients)

    @property
    def profile(self) -> list[float]:
        if self.carrier.profile is None:
            raise InputError("This protocol needs to know how long each client takes, and nobody has measured it.")
        seconds: list[float] = self.carrier.profile[self.clients].tolist()
        return seconds

    @property
    def labels(self) -> Tensor | None:
        told = self.carrier.labels
        return None if told is None else told[self.clients]

    def reachable(self, weights: Weights) -> bool:
        return weights.holder is None or self.carrier.reachable(weights, self.ledger.round)

    def here(self, rnd: Round) -> list[int]:
        free = self.carrier.present(rnd.number)
        free[[task.client for task in self.ledger.book.open]] = False
        return [client for client in np.flatnonzero(free).tolist() if self._clients is None or client in self._clients]

    @property
    def now(self) -> float:
        return self.carrier.now

    def note(self, **numbers: Any) -> None:
        self.ledger.tally.notes.update(numbers)

    @property
    def tasks(self) -> list[Task]:
        return list(self.ledger.book.open)


class Coordinator(Standing):
    """Implements `protocol.Federation`: the same on a virtual clock and on a real one."""

    def __init__(
        self,
        ledger: Ledger,
        carrier: Carrier,
        options: dict[str, Any] | None = None,
        *,
        new_ledger: NewLedger | None = None,
        clients: Sequence[int] | None = None,
    ) -> None:
        super().__init__(ledger, carrier, clients)
        self.options = dict(options or {})
        self.after_round: AfterRound | None = None
        self.stopping = False  # set from outside: no further round begins
        self._new_ledger = new_ledger
        self._above: Coordinator | None = None
        self._parts: list[Coordinator] = []
        self._saved_parts: list[Tree] = []  # what `load` found, until the protocol splits again
        self._waiting = _Waiting()
        carrier.open(ledger.name, self._delivered)

    # ------------------------------------------------------------------ rounds
    async def rounds(self, at_most: int | None = None) -> AsyncIterator[Round]:
        last = self.ledger.pace.rounds if at_most is None else min(self.ledger.round + at_most, self.ledger.pace.rounds)
        self._saved_parts = []
        while self.ledger.round < last and not self.stopping:
            rnd = self.ledger.begin_round(self.now)
            self.carrier.begin_round(self.ledger.name, rnd.number)
            await asyncio.sleep(0)  # what was held back for this round settles now
            yield rnd
            self.carrier.acknowledge(self.ledger.end_round(rnd), False)
            if self.after_round is not None:
                self.after_round(rnd, self.ledger.tally)
            done = self.ledger.new_tally()
            if self._above is not None:
                self._above.ledger.tally.add(done)

    # ------------------------------------------------------------------ tasks
    def select(
        self,
        rnd: Round,
        count: int | None = None,
        *,
        among: Collection[int] | None = None,
        without: Collection[int] = (),
        waiting: bool = False,
    ) -> list[int]:
        here = self.carrier.present(rnd.number)
        if self._clients is not None:
            here &= np.isin(np.arange(len(here)), self._clients)
        return self.ledger.choose(rnd, here, self.carrier.profile, count, among, without, waiting)

    def dispatch(
        self, rnd: Round, clients: Sequence[int], weights: Sequence[Weights] | None = None, *, keep: bool = False
    ) -> list[Task]:
        if not clients:
            return []
        tasks = self.ledger.assign(rnd, clients, weights, self.carrier.limited(clients), self.now, keep)
        self.ledger.tally.bytes_down += self.carrier.send([task.assignment for task in tasks])
        return list(tasks)

    def _delivered(self, delivery: Delivery) -> None:
        """What a carrier tells, at the moment it happens."""
        task = self.ledger.book.deliver(delivery, self.now)
        if task is None:
            self.carrier.acknowledge([delivery.id], False)
            return
        self._waiting.tell(delivery.id)

    async def gather(self, tasks: Sequence[Task], deadline: float | None = None) -> list[Update]:
        mine = _booked(tasks)
        if not mine:
            await self.nobody()
            return []
        left = None if deadline is None else max(0.0, mine[0].given_at + deadline - self.now)
        await self._waiting.for_all([task.id for task in mine if not task.over()], left)
        updates = self.ledger.taken([self.ledger.book.take_one(task) for task in mine if task.status == "arrived"])
        self.give_up(mine)
        return updates

    async def arrivals(self, until: float | None = None, at_least: int = 0) -> list[Update]:
        book = self.ledger.book
        while not (at_least and len(book.inbox) >= at_least):
            if until is None and all(task.over() for task in book.open):
                break  # nothing more can come before the next round
            if until is not None and self.now >= until:
                break
            await self.news(until)
        return self.take()

    async def news(self, until: float | None = None) -> None:
        await self._waiting.for_any(until)

    def take(self, tasks: Sequence[Task] | None = None, at_most: int | None = None) -> list[Update]:
        return self.ledger.taken(self.ledger.book.take(None if tasks is None else _booked(tasks), at_most))

    def give_up(self, tasks: Sequence[Task]) -> None:
        self.carrier.cancel(self.ledger.book.give_up(_booked(tasks), self.now))

    # ------------------------------------------------------------------ updates
    def discard(self, updates: Sequence[Update]) -> None:
        self.carrier.acknowledge(self.ledger.discard(updates, self.now), False)

    def observe(self, rnd: Round, updates: Sequence[Update]) -> list[Update]:
        sound, refused = self.ledger.observe(rnd, updates, self.now)
        self.carrier.acknowledge([update.id for update in sound], True)
        self.carrier.acknowledge(refused, False)
        return sound

    def aggregate(self, rnd: Round, updates: Sequence[Update], *, observed: bool = False) -> None:
        accepted, refused = self.ledger.aggregate(rnd, updates, self.now, observed)
        self.carrier.acknowledge(accepted, True)
        self.carrier.acknowledge(refused, False)

    async def bring(self, weights: Weights) -> Weights | None:
        if weights.holder is None:
            return weights
        found, size = await self.carrier.bring(weights, self.ledger.round)
        self.ledger.tally.bytes_up += size
        return found

    def preview(self, rnd: Round, updates: Sequence[Update]) -> Weights:
        return self.ledger.preview(rnd, updates)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def nobody(self) -> None:
        await self.carrier.nobody()

    # ------------------------------------------------------------------ several on one clock
    def split(self, groups: Sequence[Collection[int]]) -> list[Federation]:
        if self._new_ledger is None:
            raise InputError("This federation cannot be split.")
        self._parts = []
        for i, group in enumerate(groups):
            ledger = self._new_ledger(f"{self.ledger.name}{i}/", self.weights)
            part = Coordinator(ledger, self.carrier, self.options, new_ledger=self._new_ledger, clients=list(group))
            part._above = self
            ledger.book.events = self.ledger.book.events
            self._parts.append(part)
        if len(self._saved_parts) == len(self._parts):
            for part, tree in zip(self._parts, self._saved_parts, strict=True):
                part.load(tree)
        self._saved_parts = []
        return list(self._parts)

    # ------------------------------------------------------------------ saving
    def state(self) -> Tree:
        """The books of this federation and of its parts; the carrier saves itself."""
        return {"ledger": self.ledger.state(), "parts": [part.state() for part in self._parts]}

    def load(self, tree: Tree) -> None:
        self.ledger.load(tree["ledger"])
        self._saved_parts = tree["parts"]


class _Waiting:
    """Who waits for what a carrier tells: for anything at all, or for all of some tasks."""

    def __init__(self) -> None:
        self._anything: asyncio.Future[None] | None = None
        self._counted: dict[str, _Countdown] = {}  # by the id of a task

    def tell(self, task: str) -> None:
        """Something came of a task."""
        countdown = self._counted.pop(task, None)
        if countdown is not None:
            countdown.one_less()
        _resolve(self._anything)

    async def for_any(self, until: float | None) -> None:
        """Until the carrier tells anything, or that time has come."""
        loop = asyncio.get_running_loop()
        self._anything = loop.create_future()
        if until is not None:
            loop.call_at(until, _resolve, self._anything)
        await self._anything
        self._anything = None

    async def for_all(self, tasks: Sequence[str], seconds: float | None) -> None:
        """Until something came of all of these, at most so long."""
        countdown = _Countdown(len(tasks))
        self._counted.update(dict.fromkeys(tasks, countdown))
        await countdown.wait(seconds)
        for task in tasks:
            self._counted.pop(task, None)


class _Countdown:
    """Waits until several tasks are over."""

    def __init__(self, n: int) -> None:
        self._left = n
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def one_less(self) -> None:
        self._left -= 1
        if self._left == 0:
            _resolve(self._done)

    async def wait(self, seconds: float | None) -> None:
        """Until all are over, at most so long."""
        if self._left:
            if seconds is not None:
                asyncio.get_running_loop().call_later(seconds, _resolve, self._done)
            await self._done


def _booked(tasks: Sequence[Task]) -> list[BookedTask]:
    """Tasks of this federation's own making."""
    return [task for task in tasks if isinstance(task, BookedTask)]


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
