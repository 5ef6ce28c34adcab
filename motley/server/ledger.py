"""The books of a federation: who was given what, what came of it, and what the method's server side made of it.

A ledger has no clock, no transport and no fleet. It is told what happens (`deliver`) and asked what to do next
(`choose`, `assign`, `aggregate`); all it knows can be saved and loaded as a tree. The same ledger serves a simulation
and a deployment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.core.codec import Content
from motley.core.keys import Key, fold_each
from motley.core.part import Method
from motley.core.schedule import Schedule, value_at
from motley.core.tasks import NOTHING, Assignment, Event, Update, Weights
from motley.core.types import Plan, Pool, Round, Setting, Tree, Updates
from motley.server.finite_check import FiniteCheck
from motley.server.method_server import MethodServer
from motley.server.tally import Tally, stacked
from motley.server.task_book import BookedTask, TaskBook


class Pace(NamedTuple):
    """How long and how hard a run trains."""

    rounds: int
    cohort: int
    epochs: float
    lr: Schedule
    deadline: float | None = None  # seconds a round waits
    on_bad_update: str = "stop"  # or "drop"
    punctual: bool = False  # updates are merged in the round they were trained in


class Ledger:
    """The state of one federation between two moments."""

    def __init__(self, method: Method, setting: Setting, key: Key, pace: Pace, name: str = "") -> None:
        self.name = name  # of a part of a federation that was split
        self.server = MethodServer(method, setting)
        self.book = TaskBook(self.server.decode)
        self.key, self.pace = key, pace
        self.n_clients = setting.n_clients
        self.weights = Weights(setting.params)
        self.shown: Weights | None = None
        self.memory: dict[str, Tree] = {}
        self.round = 0
        self.chosen = np.zeros(setting.n_clients, np.int32)  # tasks each client was given
        self.heard = np.zeros(setting.n_clients, np.int32)  # updates of each client that were merged or handed on
        self.came: Updates | None = None  # what was last handed on or merged in this round
        self._choices = 0  # selections made in this round
        self._again: Counter[int] = Counter()  # tasks of each client in this round
        self._unsettled: dict[str, None] = {}  # taken in this round, neither accepted nor refused
        self._check = FiniteCheck(pace.on_bad_update == "drop", self.server.method)
        self._sizes = torch.ones(setting.n_clients) if setting.n is None else setting.n.cpu()

    @property
    def tally(self) -> Tally:
        """What this round has counted so far."""
        return self.book.tally

    # ------------------------------------------------------------------ rounds
    def begin_round(self, now: float) -> Round:
        self.round += 1
        self.came = None
        self._choices = 0
        self._again.clear()
        key = self.key.fold("round", self.round)
        return Round(self.round, key, self.pace.cohort, now, self.pace.deadline)

    def end_round(self, rnd: Round) -> list[str]:
        """Refuses a round that took in what is not finite, and tells parts how tasks ended.

        Gives the ids of updates that were taken and left unused.
        """
        self._check.settle()
        self.server.settle()
        if self.server.method.has("conclude"):
            self.server.conclude(rnd, self.book.outcomes())
        self.book.forget_ended()
        left, self._unsettled = list(self._unsettled), {}
        return left

    def new_tally(self) -> Tally:
        """What was counted, and a new count from now on."""
        done, self.book.tally = self.book.tally, Tally()
        return done

    # ------------------------------------------------------------------ giving
    def choose(
        self,
        rnd: Round,
        here: NDArray[np.bool_],
        seconds: Tensor | None,
        count: int | None = None,
        among: Collection[int] | None = None,
        without: Collection[int] = (),
        waiting: bool = False,
    ) -> list[int]:
        """Who trains, of those who are here [N] and have no task; ``seconds`` [N] is what profiling says."""
        if among is not None:
            here &= np.isin(np.arange(len(here)), list(among))
        here[list(without)] = False
        waiting = waiting and not self.server.method.has("keep")
        for task in self.book.open:
            if not (waiting and task.held):
                here[task.client] = False
        pool = Pool(torch.from_numpy(np.flatnonzero(here)), self._sizes, seconds)
        if self._choices:
            rnd = rnd._replace(key=rnd.key.fold("choice", self._choices))
        self._choices += 1
        return self.server.select(rnd if count is None else rnd._replace(cohort=count), pool)

    def assign(
        self,
        rnd: Round,
        clients: Sequence[int],
        starts: Sequence[Weights] | None,
        limited: NDArray[Any],
        now: float,
        keep: bool = False,
    ) -> list[BookedTask]:
        """Tasks for some clients, with the global model or with one of their own; ``limited`` [K] as devices told.

        keep: the new models stay with their clients.
        """
        ids = list(clients)
        plan = self.server.plan(rnd, ids, self._plan(rnd, ids, limited))
        sent = self.server.send(rnd)
        down = Content(sent) if sent else NOTHING
        dials = self.server.dials(rnd)
        begun = list(starts) if starts is not None else [self.weights] * len(ids)
        numbers = zip(plan.epochs.tolist(), plan.floor.tolist(), plan.partial.tolist(), plan.lr.tolist(), strict=True)
        keys = fold_each(self.key.fold("client", rnd.number), np.array(ids)).tolist()
        tasks = []
        for client, start, (epochs, floor, partial, lr), key in zip(ids, begun, numbers, keys, strict=True):
            name = f"{self.name}{rnd.number}.{self.book.next_number}"
            drawn = self._key_of(Key(key), client)
            made = Assignment(
                name, client, rnd.number, start, down, dials, epochs, floor, bool(partial), lr, drawn, keep
            )
            tasks.append(self.book.give(made, now))
        self.tally.participants.extend(ids)
        np.add.at(self.chosen, ids, 1)
        return tasks

    def _key_of(self, key: Key, client: int) -> Key:
        """The key of a client's task: its first in a round has the client's key itself."""
        before = self._again[client]
        self._again[client] += 1
        return key.fold("again", before) if before else key

    def _plan(self, rnd: Round, ids: list[int], limited: NDArray[Any]) -> Plan:
        wanted = torch.full((len(ids),), self.pace.epochs)
        lr = torch.full((len(ids),), value_at(self.pace.lr, rnd.number))
        told = torch.from_numpy(np.asarray(limited, np.float32))
        return Plan(wanted, wanted.clone(), lr, torch.zeros(len(ids)), told)

    # ------------------------------------------------------------------ learning from updates
    def discard(self, updates: Sequence[Update], now: float = 0.0) -> list[str]:
        """Counts updates that came too late to be used; their ids."""
        self.book.tell_each("discard", updates, now)
        self.tally.late += len(updates)
        self.tally.arrived -= len(updates)
        return self._settled(updates)

    def observe(self, rnd: Round, updates: Sequence[Update], now: float = 0.0) -> tuple[list[Update], list[str]]:
        """Lets parts learn from updates that are handed on; those that are sound, and the ids of the others."""
        sound, refused = self._sound(updates, now)
        if sound:
            self.came = stacked(rnd, sound)
            with self._check.blamed():
                self.server.observe(rnd, self.came)
            self._accept(sound)
        return sound, refused

    def aggregate(
        self, rnd: Round, updates: Sequence[Update], now: float, observed: bool = False
    ) -> tuple[list[str], list[str]]:
        """Merges updates into the global model; ids of those whose clients may keep their state, and of the refused.

        observed: parts have learned from them before, so they are merged and nothing else.
        """
        sound, refused = self._sound(updates, now)
        if not sound:
            return [], refused
        with self._check.blamed():
            self._merge(rnd, stacked(rnd, sound), observed)
        if self.book.events is not None:
            facts = {"updates": len(sound), "tasks": [update.id for update in sound]}
            self.book.events(Event(now, "aggregate", -1, rnd.number, facts))
        if observed:
            return [], refused
        self._accept(sound)
        if not self.pace.punctual:
            self.tally.stale.extend(rnd.number - one.round for one in sound)
        return [update.id for update in sound], refused

    def _merge(self, rnd: Round, updates: Updates, observed: bool) -> None:
        if not observed:
            self.came = updates
            self.server.observe(rnd, updates)
        rnd = rnd._replace(dropped=self.book.dropped)
        self.weights = Weights(self.server.aggregate(rnd, self.weights.value, updates))

    def preview(self, rnd: Round, updates: Sequence[Update]) -> Weights:
        """The model that aggregating these would give; nothing is changed."""
        if not updates:
            return self.weights
        state = dict(self.server.state)
        value = self.server.aggregate(rnd, self.weights.value, stacked(rnd, updates))
        self.server.state = state
        return Weights(value)

    def _sound(self, updates: Sequence[Update], now: float) -> tuple[list[Update], list[str]]:
        """The updates that are taken; the others count as lost."""
        good = self._check.sound(updates)
        if len(good) == len(updates):
            return good, []
        kept = {update.id for update in good}
        bad = [update for update in updates if update.id not in kept]
        self.book.tell_each("refuse", bad, now)
        self.tally.lost += len(bad)
        self.tally.arrived -= len(bad)
        return good, self._settled(bad)

    def _accept(self, updates: Sequence[Update]) -> None:
        self.tally.merged += len(updates)
        np.add.at(self.heard, [update.client for update in updates], 1)
        self._settled(updates)

    def taken(self, updates: Sequence[Update]) -> list[Update]:
        """Remembers updates that the protocol has now, until it says what becomes of them."""
        self._unsettled.update(dict.fromkeys(update.id for update in updates))
        return list(updates)

    def _settled(self, updates: Sequence[Update]) -> list[str]:
        for update in updates:
            self._unsettled.pop(update.id, None)
        return [update.id for update in updates]

    # ------------------------------------------------------------------ saving
    def state(self) -> Tree:
        """Everything, between two rounds."""
        return {
            "round": self.round,
            "weights": self.weights,
            "shown": self.shown,
            "server": self.server.state,
            "memory": self.memory,
            "chosen": torch.from_numpy(self.chosen),
            "heard": torch.from_numpy(self.heard),
            "book": self.book.state(),
        }

    def load(self, tree: Tree) -> None:
        """Goes back to what `state` gave."""
        known: dict[str, Weights] = {}

        def model(content: Content) -> Weights:
            return known.setdefault(content.ref, Weights(content.tree, content.ref))

        self.round = tree["round"]
        self.weights = model(tree["weights"])
        self.shown = None if tree["shown"] is None else model(tree["shown"])
        self.server.load(tree["server"])
        self.memory = tree["memory"]
        self.chosen, self.heard = tree["chosen"].numpy(), tree["heard"].numpy()
        self.book.load(tree["book"], model)
