"""Processes of a world of faults: server and agents that may be killed between any two operations."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from motley.client.site import Site
from motley.core.codec import dumps
from motley.core.tasks import Assignment, Finished, Kept
from motley.deploy.agent import Agent
from motley.deploy.fault_world import MemoryDisk, MemoryLink, Network
from motley.deploy.identities import Identity
from motley.deploy.roster import Roster, Seat
from motley.deploy.serving import Serving
from motley.engine.loop import run_task
from motley.runtime.clock import SteppedLoop
from motley.runtime.experiment import Experiment, prepare
from motley.runtime.launch import Run
from motley.runtime.recipe import load

BASE: dict[str, Any] = {
    "clients": 5,
    "cohort": 3,
    "rounds": 5,
    "model": "logistic",
    "executor": "loop",
    "seed": 3,
    "evaluate_every": 5,
    "partition": "iid",
    "batch_size": 512,
    "checkpoint_seconds": 0.0,
}
CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "scaffold": {"method": "scaffold"},
    "feddyn": {"method": "feddyn"},
    "rebafl": {"method": "rebafl"},
    "radfed": {"method": "radfed(S=3)"},
    "late": {"protocol": "late", "deadline": 25.0},
    "asynchronous": {"protocol": "asynchronous", "options": {"buffer": 2}},
    "semi": {"protocol": "semi_asynchronous", "deadline": 30.0},
    "deadline": {"method": "scaffold", "deadline": 20.0},
    "mediators": {"method": "fedavg", "protocol": "mediators", "options": {"groups": 2, "passes": 2}, "rounds": 3},
    "seen": {"method": "scaffold", "protocol": "mediators", "options": {"groups": 2, "through": "server"}, "rounds": 3},
}
PUNCTUAL = ("fedavg", "scaffold", "feddyn", "rebafl", "radfed", "mediators")
current_node: contextvars.ContextVar[str] = contextvars.ContextVar("node", default="")


class KilledError(BaseException):
    """A process ends in the middle of what it does."""


class WorldLoop(SteppedLoop):
    """The clock of a world; it knows whose tasks are whose."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: dict[str, list[asyncio.Task[Any]]] = {}

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task = super().create_task(coro, name=name, context=context)
        self.tasks.setdefault(current_node.get(), []).append(task)
        return task

    def settle(self) -> None:
        """Lets what was killed come to its end, whatever happened before."""
        self._failure = None
        self.run(asyncio.sleep(0.1))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), KilledError | asyncio.CancelledError):
            super().call_exception_handler(context)


class Fuse:
    """A process's hold on the world: it may burn through between any two operations."""

    def __init__(self, rng: random.Random, die: Callable[[], None]) -> None:
        self.rng, self.die = rng, die
        self.alive = True
        self.left: int | None = None

    def __call__(self, operation: Callable[..., Any], *given: Any) -> Any:
        if not self.alive:
            raise KilledError
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                if self.rng.random() < 0.5:
                    operation(*given)
                self.alive = False
                self.die()
                raise KilledError
        return operation(*given)


class FusedDisk:
    """A disk as a process sees it until it dies."""

    def __init__(self, disk: MemoryDisk, fuse: Fuse) -> None:
        self._disk, self._fuse = disk, fuse

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._disk, name)
        return lambda *given: self._fuse(operation, *given)


class FusedLink(MemoryLink):
    """A line as a process sees it until it dies."""

    def __init__(self, network: Network, node: str, fuse: Fuse) -> None:
        super().__init__(network, node)
        self._fuse = fuse

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        if self._fuse.alive:
            self._fuse(super().publish, subject, data, reply)

    def subscribe(self, pattern: str, receive: Any) -> Any:
        def safely(message: Any) -> None:
            if self._fuse.alive:
                current_node.set(self.node)
                with suppress(KilledError):
                    receive(message)

        return super().subscribe(pattern, safely)


class Process(NamedTuple):
    """Something that runs and can be killed."""

    what: Serving | Agent
    link: FusedLink
    fuse: Fuse


async def inline(function: Callable[..., Any], *given: Any) -> Any:
    """Where there is one clock there is one thread."""
    return function(*given)


class Trainer:
    """Trains each different task once and remembers it: thousands of schedules share their tasks."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._known: dict[tuple[str, bytes], Finished] = {}

    def __call__(self, task_id: str, a: Assignment, own: Kept | None) -> Finished:
        key = task_id, b"" if own is None else dumps(own)  # what it was really given
        if key not in self._known:
            self._known[key] = run_task(self.site, a, self.site.facts([a]).row(0), own)
        return self._known[key]


class Case(NamedTuple):
    """An experiment, and what its simulation gives."""

    name: str
    experiment: Experiment
    trainer: Trainer
    plain: Trainer  # for replays: it shares nothing with what agents trained
    simulated: str | None

    @classmethod
    def make(cls, name: str) -> Case:
        e = prepare(load("digits", {**BASE, **CASES[name], "name": name}))
        simulated = Run(e).go().summary["model_sha256"] if name in PUNCTUAL else None
        return cls(name, e, Trainer(e.site), Trainer(e.site), simulated)

    @property
    def run_id(self) -> str:
        return self.experiment.recipe.identity


IDENTITIES = [Identity(bytes([i]) * 32) for i in range(16)]
"""Of the server, and of agents 0, 1, ..."""


def roster_of(e: Experiment) -> Roster:
    """Everybody sits, and has told all there is to tell."""
    roster = Roster(e.data.n_clients)
    for client in range(e.data.n_clients):
        labels = tuple(float(one) for one in e.data.labels_of(client))
        flops = float(e.fleet.flops[client])
        seat = Seat(f"agent-{client}", IDENTITIES[client + 1].public, int(e.data.sizes[client]), labels, flops=flops)
        roster.sit(client, seat)
    return roster
