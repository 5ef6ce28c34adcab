"""The carrier of a deployment: real clients, on a clock that is moved by what was logged.

Nothing here depends on the time of day or on a network. The same entries give the same run, whether they are applied as
they happen, after a crash, or in an audit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from motley.core.codec import Content
from motley.core.tasks import NOTHING, Assignment, Delivery, Report, Weights
from motley.core.types import Tree
from motley.deploy.event_log import Entry
from motley.deploy.messages import Blob, Task, decode, encode, task_of
from motley.deploy.roster import Roster, Seat
from motley.fleet.fleet import Fleet
from motley.protocol.carrier import EMPTY_SECONDS, Deliver, channel_of
from motley.runtime.clock import SteppedLoop

REMEMBERED = 8  # arrivals of each client that are answered with a receipt when they are offered again

Store = Callable[[Content], Blob]
"""Makes a content available to clients."""


class Attendance:
    """Who is there."""

    def __init__(self, roster: Roster, rehearsed: Fleet | None = None) -> None:
        """``rehearsed``: devices of a simulation that the agents play."""
        self.roster, self.rehearsed = roster, rehearsed
        self.here = np.zeros(roster.n_seats, bool)
        self.coming: asyncio.Future[None] | None = None  # somebody waits for somebody to come

    def comes(self, client: int) -> None:
        self.here[client] = client not in self.roster.evicted
        _resolve(self.coming)

    def goes(self, client: int) -> None:
        self.here[client] = False

    def sits(self, client: int, told: dict[str, Any]) -> None:
        self.roster.sit(client, Seat.from_tree(told))

    def evict(self, client: int) -> None:
        self.roster.evict(client)
        self.goes(client)

    def attend(self, entry: Entry) -> None:
        """An entry from before the run's beginning: it says who is there, or nothing that matters here."""
        effects: dict[str, Callable[..., None]] = {
            "here": self.comes,
            "gone": self.goes,
            "seat": self.sits,
            "evict": self.evict,
        }
        if entry.kind in effects:
            effects[entry.kind](*entry.what)

    def present(self, number: int, now: float) -> NDArray[np.bool_]:
        return self.here.copy() if self.rehearsed is None else self.here & self.rehearsed.present(number, now)

    def state(self) -> Tree:
        return {"here": [int(c) for c in np.flatnonzero(self.here)], "roster": self.roster.to_tree()}

    def load(self, tree: Tree) -> None:
        self.roster = Roster.from_tree(tree["roster"])
        self.here = np.zeros(self.roster.n_seats, bool)
        self.here[tree["here"]] = True


class Sent(NamedTuple):
    """A task that may still bring something."""

    task: Task
    assignment: Assignment


class Spool(Protocol):
    """What came from clients."""

    def report(self, sent: Sent) -> tuple[Report, int]:
        """What came of a task, and its bytes."""

    def model(self, digest: str) -> Weights:
        """A model that a client held."""


class Outside:
    """Tasks that are out, by the id of their message, and what their clients keep."""

    def __init__(self, run_id: str, store: Store, keeps: bool, phase: str) -> None:
        self.run_id, self.store, self.keeps, self.phase = run_id, store, keeps, phase
        self.open: dict[str, Sent] = {}
        self.arrived: dict[int, deque[str]] = {}  # of each client, the last ones
        self._ids: dict[str, str] = {}  # a task's name in the books -> the id of its message
        self._delivered: dict[str, tuple[int, str]] = {}  # name -> client, id: neither accepted nor refused so far
        self._basis: dict[int, str] = {}  # of each client: the task after which what it keeps was accepted

    def send(self, a: Assignment, quickest: float) -> Task:
        task = task_of(
            a,
            run=self.run_id,
            start=self._start(a.start),
            down=None if a.down is NOTHING or not a.down.tree else self.store(a.down),
            basis=self._basis.get(a.client, "") if self.keeps else "",
            quickest=quickest,
            keep=a.keep,
            phase=self.phase,
        )
        self.open[task.id] = Sent(task, a)
        self._ids[a.id] = task.id
        return task

    def _start(self, start: Weights) -> Blob:
        """Where the model of a task is to be had: here, or from the client that holds it."""
        if start.holder is None:
            return self.store(start)
        return Blob(start.ref, start.size, (str(start.holder),))

    def arrive(self, task_id: str) -> Sent | None:
        """A task that somebody still waits for."""
        sent = self.lose(task_id)
        if sent is not None:
            client = sent.task.client
            self._delivered[sent.task.name] = client, task_id
            self.arrived.setdefault(client, deque(maxlen=REMEMBERED)).append(task_id)
        return sent

    def lose(self, task_id: str) -> Sent | None:
        sent = self.open.pop(task_id, None)
        if sent is not None:
            del self._ids[sent.task.name]
        return sent

    def cancel(self, name: str) -> tuple[int, str] | None:
        """Client and id of a task by its name in the books, where it was out."""
        self._delivered.pop(name, None)
        sent = self.open.pop(self._ids.pop(name, ""), None)
        return None if sent is None else (sent.task.client, sent.task.id)

    def acknowledge(self, name: str, accepted: bool) -> None:
        client, task_id = self._delivered.pop(name, (-1, ""))
        if accepted and self.keeps and client >= 0:
            self._basis[client] = task_id

    def forget(self, client: int) -> None:
        """A client has lost what it kept."""
        self._basis.pop(client, None)

    def state(self) -> Tree:
        return {
            "open": [[encode(sent.task).decode(), sent.assignment.to_tree()] for sent in self.open.values()],
            "delivered": [[name, client, task_id] for name, (client, task_id) in self._delivered.items()],
            "basis": {str(client): task_id for client, task_id in self._basis.items()},
            "arrived": {str(client): list(tasks) for client, tasks in self.arrived.items()},
        }

    def load(self, tree: Tree) -> None:
        self.open, self._ids = {}, {}
        for text, row in tree["open"]:
            task, a = decode(Task, text.encode()), Assignment.from_tree(row)
            self._start(a.start)
            if task.down is not None:
                self.store(a.down)
            self.open[task.id] = Sent(task, a)
            self._ids[a.id] = task.id
        self._delivered = {name: (client, task_id) for name, client, task_id in tree["delivered"]}
        self._basis = {int(client): task_id for client, task_id in tree["basis"].items()}
        self.arrived = {int(client): deque(tasks, REMEMBERED) for client, tasks in tree["arrived"].items()}


class Elsewhere:
    """Models that clients hold, which the protocol wants to have here."""

    def __init__(self) -> None:
        self.wanted: dict[str, Weights] = {}  # by digest
        self._waiting: dict[str, asyncio.Future[Weights | None]] = {}

    async def bring(self, weights: Weights) -> Weights | None:
        digest = weights.ref
        if digest not in self._waiting:
            self.wanted[digest] = weights
            self._waiting[digest] = asyncio.get_running_loop().create_future()
        return await self._waiting[digest]

    def settle(self, digest: str, found: Weights | None) -> None:
        """It is here, or cannot be had."""
        self.wanted.pop(digest, None)
        future = self._waiting.pop(digest, None)
        if future is not None and not future.done():
            future.set_result(found)


class FieldPlace:
    """Time and place of a deployment: who told what, on a clock that is moved from outside."""

    def __init__(self, attendance: Attendance, epochs: float, now: float = 0.0) -> None:
        self.attendance = attendance
        self.loop = SteppedLoop(now)  # type: ignore[abstract]
        self._epochs = epochs

    @property
    def now(self) -> float:
        return self.loop.time()

    @property
    def n_clients(self) -> int:
        return self.attendance.roster.n_seats

    @property
    def profile(self) -> Tensor | None:
        return self.attendance.roster.profile(self._epochs)

    @property
    def labels(self) -> Tensor | None:
        return self.attendance.roster.labels

    def present(self, number: int) -> NDArray[np.bool_]:
        return self.attendance.present(number, self.now)

    def limited(self, clients: Sequence[int]) -> NDArray[np.bool_]:
        return self.attendance.roster.limited[list(clients)]

    def reachable(self, weights: Weights, number: int) -> bool:
        return weights.holder is None or bool(self.attendance.here[weights.holder])

    def begin_round(self, channel: str, number: int) -> None:
        """Nothing is held back here."""

    async def nobody(self) -> None:
        coming = self.attendance.coming = asyncio.get_running_loop().create_future()
        self.loop.call_later(EMPTY_SECONDS, _resolve, coming)
        await coming


class FieldCarrier(FieldPlace):
    """Implements `protocol.Carrier` for clients that are elsewhere."""

    def __init__(
        self,
        attendance: Attendance,
        outside: Outside,
        spool: Spool,
        epochs: float,
        saved: Callable[[int], None] | None = None,
        now: float = 0.0,
    ) -> None:
        """``saved``: told after which entry a checkpoint was made. ``now``: seconds at which it begins."""
        super().__init__(attendance, epochs, now)
        self.outside, self.elsewhere = outside, Elsewhere()
        self.applied = 0  # the last entry that had its effect, or is having it
        self._spool, self._saved = spool, saved
        self._channels: dict[str, Deliver] = {}
        self._fresh: list[str] = []  # to be sent, since last asked
        self._closed: list[tuple[int, str]] = []  # client and task: nothing is wanted of it any more, since last asked

    def open(self, channel: str, deliver: Deliver) -> None:
        self._channels[channel] = deliver

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Begins a protocol; what was logged moves it on (`apply`)."""
        self.loop.begin(main)

    # ------------------------------------------------------------------ tasks
    def send(self, assignments: Sequence[Assignment]) -> int:
        total = 0
        for a in assignments:
            task = self.outside.send(a, self.attendance.roster.quickest)
            self._fresh.append(task.id)
            total += (task.start.size if a.start.holder is None else 0) + (0 if task.down is None else task.down.size)
        return total

    def cancel(self, ids: Sequence[str]) -> None:
        found = (self.outside.cancel(name) for name in ids)
        self._closed += [one for one in found if one is not None]

    async def bring(self, weights: Weights, number: int) -> tuple[Weights | None, int]:
        found = await self.elsewhere.bring(weights) if self.reachable(weights, number) else None
        return found, 0 if found is None else weights.size

    def acknowledge(self, ids: Sequence[str], accepted: bool) -> None:
        for name in ids:
            self.outside.acknowledge(name, accepted)

    def news(self) -> tuple[list[str], list[tuple[int, str]]]:
        """Tasks to be sent, and (client, task) of which nothing is wanted any more, since this was last asked."""
        fresh, self._fresh = self._fresh, []
        closed, self._closed = self._closed, []
        return [one for one in fresh if one in self.outside.open], closed

    # ------------------------------------------------------------------ what happened
    def apply(self, entry: Entry) -> None:
        """An entry of the log has its effect; kinds that concern nobody here have none."""
        self.applied = entry.seq
        effects: dict[str, Callable[..., None]] = {
            "here": self.attendance.comes,
            "gone": self.attendance.goes,
            "seat": self._sit,
            "evict": self._evict,
            "forgot": self.outside.forget,
            "arrive": self._arrive,
            "lose": self._lose,
            "brought": self._brought,
            "missed": self._missed,
        }
        if self.loop.done:  # who is there is still noted, for what comes after
            self.attendance.attend(entry)
        elif entry.kind in effects:
            self.loop.inject(entry.t, effects[entry.kind], *entry.what)
        else:
            self.loop.advance(entry.t)

    def _sit(self, client: int, told: dict[str, Any]) -> None:
        before = self.attendance.roster.seats.get(client)
        if before is None or before.public_key != told["public_key"]:
            self.outside.forget(client)  # somebody else, or one who has lost everything
        self.attendance.sits(client, told)

    def _evict(self, client: int) -> None:
        self.attendance.evict(client)
        self.outside.forget(client)

    def _arrive(self, task_id: str, digest: str) -> None:
        sent = self.outside.arrive(task_id)
        if sent is not None:
            report, size = self._spool.report(sent)
            name = sent.task.name
            self._tell(Delivery(name, "arrived", report._replace(id=name), size))

    def _lose(self, task_id: str, why: str = "") -> None:
        sent = self.outside.lose(task_id)
        if sent is not None:
            self._closed.append((sent.task.client, task_id))
            self._tell(Delivery(sent.task.name, "lost", why="holder" if why.startswith("holder") else why))

    def _brought(self, digest: str) -> None:
        if digest in self.elsewhere.wanted:
            self.elsewhere.settle(digest, self._spool.model(digest))

    def _missed(self, digest: str) -> None:
        self.elsewhere.settle(digest, None)

    def _tell(self, delivery: Delivery) -> None:
        self._channels[channel_of(delivery.id)](delivery)

    # ------------------------------------------------------------------ saving
    def state(self) -> Tree:
        return {
            "now": self.now,
            "applied": self.applied,
            "attendance": self.attendance.state(),
            "outside": self.outside.state(),
        }

    def load(self, tree: Tree) -> None:
        self.loop = SteppedLoop(tree["now"])  # type: ignore[abstract]
        self.applied = tree["applied"]
        self.attendance.load(tree["attendance"])
        self.outside.load(tree["outside"])
        self._fresh, self._closed = list(self.outside.open), []

    def saved(self) -> None:
        if self._saved is not None:
            self._saved(self.applied)

    def close(self) -> None:
        self.loop.discard()
        self._channels.clear()


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
