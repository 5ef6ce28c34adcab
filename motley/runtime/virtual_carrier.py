"""The carrier of a simulation: a fleet, what tasks cost on it, an engine that trains them, and a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.client.site import Site
from motley.core.bill import Cost
from motley.core.stacking import tree_bytes
from motley.core.tasks import Assignment, Delivery, Failed, Finished, Kept, Weights
from motley.core.types import Tree
from motley.engine.executor import Executor
from motley.engine.reports import apart
from motley.fleet.fleet import Fate, Fleet
from motley.protocol.carrier import EMPTY_SECONDS, Deliver, channel_of
from motley.runtime.client_store import ClientStore
from motley.runtime.clock import SteppedLoop
from motley.runtime.costs import Costs, Work

UNANSWERED = 1.5  # seconds after which a client knows that the one who should hand it a model is gone


class Trip:
    """A task between its dispatch and its delivery."""

    __slots__ = ("cancelled", "done", "fate", "finish", "given_at", "number", "spent", "task")

    def __init__(self, task: Assignment, spent: float, fate: Fate, number: int, given_at: float) -> None:
        self.task = task  # with the epochs whose result is sent
        self.spent = spent  # epochs the device trains
        self.fate = fate
        self.number = number  # counts dispatches: the order of trips that finish at the same time
        self.given_at = given_at
        self.finish: float | None = None
        self.done: Finished | None = None
        self.cancelled = False

    @property
    def silent(self) -> bool:
        """Whether nothing will come of it."""
        return self.fate.lost or self.task.epochs <= 0

    @property
    def foreseen(self) -> bool:
        """Whether its time can be told, even where that depends on what training gives."""
        return self.finish is not None or self.done is not None or self.silent

    def work(self, costs: Costs) -> Work:
        """What the device does; of a task that is trained already, what really came of it."""
        if self.done is None:
            return Work(self.task, self.spent, self.fate.delay)
        report = self.done.report
        return Work(self.task, self.spent, self.fate.delay, report.trained, costs.upload_bytes(self.task, report))

    def to_tree(self) -> Tree:
        affordable, lost, delay, rounds = self.fate
        return {
            "task": self.task.to_tree(),
            "spent": self.spent,
            "fate": [float(affordable), bool(lost), float(delay), int(rounds)],
            "number": self.number,
            "given_at": self.given_at,
            "finish": self.finish,
        }

    @classmethod
    def from_tree(cls, tree: Tree) -> Trip:
        made = cls(
            Assignment.from_tree(tree["task"]), tree["spent"], Fate(*tree["fate"]), tree["number"], tree["given_at"]
        )
        made.finish = tree["finish"]
        return made


class Place:
    """Time and place of a simulation: a fleet on a virtual clock."""

    def __init__(self, fleet: Fleet, profile: Tensor, now: float) -> None:
        self.fleet = fleet
        self.profile: Tensor | None = profile
        self.loop = SteppedLoop(now, on_idle=self.idle)  # type: ignore[abstract]
        self._channels: dict[str, Deliver] = {}

    def idle(self) -> bool:
        """Called when the clock has nothing to do before its next timer; whether that has changed."""
        return False

    @property
    def now(self) -> float:
        return self.loop.time()

    @property
    def n_clients(self) -> int:
        return self.fleet.n_clients

    def open(self, channel: str, deliver: Deliver) -> None:
        self._channels[channel] = deliver

    def tell(self, delivery: Delivery) -> None:
        """Tells the federation whose task it is what became of it."""
        self._channels[channel_of(delivery.id)](delivery)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        self.loop.run(main)

    def present(self, number: int) -> NDArray[np.bool_]:
        return self.fleet.present(number, self.now)

    def limited(self, clients: Sequence[int]) -> NDArray[np.bool_]:
        return self.fleet.limited[list(clients)]

    def reachable(self, weights: Weights, number: int) -> bool:
        return weights.holder is None or bool(self.present(number)[weights.holder])

    async def nobody(self) -> None:
        await asyncio.sleep(EMPTY_SECONDS)


class VirtualCarrier(Place):
    """Implements `protocol.Carrier` on a virtual clock.

    What is under way at once is trained at once: nothing is, until something lands or its time must be known.
    """

    def __init__(
        self,
        site: Site,
        fleet: Fleet,
        cost: Cost,
        executor: Executor,
        store: ClientStore,
        epochs: float,
        now: float = 0.0,
    ) -> None:
        self.costs = Costs(site, fleet, cost)
        super().__init__(fleet, torch.from_numpy(self.costs.profile(epochs).astype(np.float32)), now)
        self.site, self.executor, self.store = site, executor, store
        self._rounds: dict[str, int] = {}  # of each channel
        self._trips: dict[str, Trip] = {}  # under way
        self._held: list[Trip] = []  # of these, delayed until a round begins
        self._kept: dict[str, tuple[int, Kept]] = {}  # what clients keep of tasks that were delivered, until told
        self._sent = 0

    @cached_property
    def labels(self) -> Tensor | None:
        table = self.site.data.labels
        return torch.from_numpy(table.astype(np.float32)) if table.size else None

    def kept(self, client: int) -> Kept | None:
        """What the parts keep on a client; None where it has not taken part yet."""
        return self.store.get(client)

    # ------------------------------------------------------------------ tasks
    def send(self, assignments: Sequence[Assignment]) -> int:
        ids, number = [a.client for a in assignments], assignments[0].round
        columns = zip(*(column.tolist() for column in self.fleet.fates(ids, number)), strict=True)
        trips = []
        for a, fate in zip(assignments, map(Fate._make, columns), strict=True):
            if not self.reachable(a.start, number):
                self.loop.call_later(UNANSWERED, self.tell, Delivery(a.id, "lost", why="holder"))
                continue
            trip = Trip(*a.afforded(fate.affordable), fate, self._sent, self.now)
            self._sent += 1
            self._trips[a.id] = trip
            trips.append(trip)
        self._schedule(trips)
        return sum(map(self.costs.download_bytes, assignments))

    def _schedule(self, trips: Sequence[Trip]) -> None:
        """Sets the moments of delivery; where one can only be known once it is trained, `_train` does that then."""
        if not self.costs.known:
            trips = [trip for trip in trips if trip.foreseen]
        new = [trip for trip in trips if trip.finish is None]
        for trip, seconds in zip(new, self.costs.seconds([trip.work(self.costs) for trip in new]), strict=True):
            trip.finish = trip.given_at + seconds
        for trip in trips:
            assert trip.finish is not None
            self.loop.deliver_at(trip.finish, trip.number, self._come, trip)

    def _come(self, trip: Trip) -> None:
        """The moment of delivery: it arrives, is lost, or is held back until a later round begins."""
        if trip.cancelled:
            return
        if trip.silent:
            del self._trips[trip.task.id]
            self.tell(Delivery(trip.task.id, "lost"))
        elif trip.task.round + trip.fate.delay_rounds > self._rounds.get(channel_of(trip.task.id), 0):
            if trip.done is not None:
                trip.done = apart(trip.done)
            self._held.append(trip)
            self.tell(Delivery(trip.task.id, "held"))
        else:
            self._deliver(trip)

    def _deliver(self, trip: Trip) -> None:
        if trip.cancelled:
            return
        if trip.done is None:
            self._train(self._untrained())
        assert trip.done is not None
        report, own = trip.done
        del self._trips[trip.task.id]
        if own:
            self._kept[trip.task.id] = trip.task.client, own
        report = report._replace(reached=trip.spent)
        self.tell(Delivery(trip.task.id, "arrived", report, self.costs.upload_bytes(trip.task, report)))

    def begin_round(self, channel: str, number: int) -> None:
        self._rounds[channel] = number
        waiting, self._held = self._held, []
        for trip in waiting:
            if channel_of(trip.task.id) == channel and trip.task.round + trip.fate.delay_rounds <= number:
                self.loop.call_soon(self._deliver, trip)
            else:
                self._held.append(trip)

    async def bring(self, weights: Weights, number: int) -> tuple[Weights | None, int]:
        if weights.holder is None or not self.reachable(weights, number):
            return (weights if weights.holder is None else None), 0
        await asyncio.sleep(self.costs.bringing(weights.holder))
        return Weights(weights.value, weights.known), self.costs.model_bytes

    def cancel(self, ids: Sequence[str]) -> None:
        for name in ids:
            self._kept.pop(name, None)
            trip = self._trips.pop(name, None)
            if trip is not None:
                trip.cancelled = True
                if trip in self._held:
                    self._held.remove(trip)

    def acknowledge(self, ids: Sequence[str], accepted: bool) -> None:
        for name in ids:
            client, own = self._kept.pop(name, (0, None))
            if accepted and own is not None:
                self.store.put(client, own)

    # ------------------------------------------------------------------ training
    def idle(self) -> bool:
        """Trains what must be known before time can move on."""
        waiting = [] if self.costs.known else self._untrained()
        if waiting:
            self._train(waiting)
        return bool(waiting)

    def _untrained(self) -> list[Trip]:
        return [trip for trip in self._trips.values() if trip.done is None and not trip.silent]

    def _train(self, trips: list[Trip]) -> None:
        first = trips[0]
        for done in self.executor.submit([trip.task for trip in trips], self.store.get):
            if isinstance(done, Failed):
                raise done.error
            self._trips[done.report.id].done = done
        if self.costs.extra_bytes is None and first.done is not None:
            self.costs.extra_bytes = tree_bytes(first.done.report.extras)
        self._schedule([trip for trip in trips if trip.finish is None])

    # ------------------------------------------------------------------ saving
    def state(self) -> Tree:
        held = [trip.task.id for trip in self._held]
        return {
            "now": self.now,
            "sent": self._sent,
            "rounds": dict(self._rounds),
            "extra_bytes": self.costs.extra_bytes,
            "trips": [trip.to_tree() for trip in self._trips.values()],
            "held": held,
            "kept": [{"id": name, "client": client, "own": own} for name, (client, own) in self._kept.items()],
            "clients": self.store.checkpoint(),
        }

    def load(self, tree: Tree) -> None:
        self.loop = SteppedLoop(tree["now"], on_idle=self.idle)  # type: ignore[abstract]
        self._sent, self._rounds = tree["sent"], dict(tree["rounds"])
        self.costs.extra_bytes = tree["extra_bytes"]
        self.store.restore(tree["clients"])
        self._kept = {row["id"]: (row["client"], row["own"]) for row in tree["kept"]}
        trips = [Trip.from_tree(row) for row in tree["trips"]]
        self._trips = {trip.task.id: trip for trip in trips}
        self._held = [self._trips[name] for name in tree["held"]]
        self._schedule([trip for trip in trips if trip not in self._held])

    def saved(self) -> None:
        """What was written for `state` is safely on disk: older files may go."""
        self.store.drop_unused()

    def close(self) -> None:
        self.executor.close()
        self.loop.on_idle = None  # it refers back: with it this would outlive its last use
        self._channels.clear()
