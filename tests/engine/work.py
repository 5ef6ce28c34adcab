"""Tasks made by hand, and the batched executor on lanes that show what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from motley.client.site import Site
from motley.core.codec import Content
from motley.core.keys import Key
from motley.core.tasks import Assignment, Failed, Finished, Kept, Report, Weights
from motley.core.types import Round
from motley.engine.batched.cpu import CpuLane
from motley.engine.batched.gpu import GpuLane
from motley.engine.batched.together import Batched
from motley.engine.batched.trace import Traced
from motley.engine.executor import Executor
from motley.engine.loop import Loop
from motley.runtime.assembly import setting_of
from motley.runtime.experiment import Experiment
from motley.server.method_server import MethodServer

STEPS = (9, 7, 4, 4, 2, 1)


def tasks_of(e: Experiment, steps: Sequence[int] = STEPS, clients: Sequence[int] | None = None) -> list[Assignment]:
    """A task for each client, with its own number of steps and with what the method sends."""
    start = e.net.initial()
    server = MethodServer(e.method, setting_of(e, start))
    rnd = Round(1, Key.root(0), len(steps), 0.0)
    weights, down, dials = Weights(start), Content(server.send(rnd)), server.dials(rnd)
    tasks = []
    for number, (client, count) in enumerate(zip(clients or range(len(steps)), steps, strict=True)):
        epochs = count / -(-int(e.data.sizes[client]) // e.training.batch_size)
        key = Key.root(1).fold(client)
        tasks.append(
            Assignment(f"1.{number}", client, 1, weights, down, dials, epochs, epochs, False, 0.05, key)
        )  # fmt: skip
    return tasks


def finished(executor: Executor, tasks: Sequence[Assignment], own: Mapping[int, Kept] | None = None) -> list[Finished]:
    """What comes of tasks, in their order; ``own`` is what clients kept before."""
    found: dict[str, Finished] = {}
    for done in executor.submit(tasks, (own or {}).get):
        if isinstance(done, Failed):
            raise done.error
        found[done.report.id] = done
    return [found[a.id] for a in tasks]


def reports(executor: Executor, tasks: Sequence[Assignment], own: Mapping[int, Kept] | None = None) -> list[Report]:
    """As `finished`, without what stays on the clients."""
    return [done.report for done in finished(executor, tasks, own)]


def by_loop(e: Experiment, tasks: Sequence[Assignment]) -> list[Report]:
    """What the reference gives."""
    return reports(Loop(e.site), tasks)


def gap(ours: Sequence[Report], theirs: Sequence[Report]) -> float:
    """The largest difference of payloads, relative to the largest change."""
    a, b = (torch.stack([one.payload for one in side]) for side in (ours, theirs))
    return float((a - b).abs().max() / b.abs().max())


class Replayed:
    """Stands in for a captured graph: runs as often to warm up, and then calls what a graph would replay."""

    def __init__(self, function: Callable[[], None], keep: Any, restore: Callable[[], Any], pool: Any = None) -> None:
        undo = restore()
        for _ in range(3):
            function()
        undo()
        self.function = function

    def __call__(self) -> None:
        with torch.no_grad():
            self.function()


class OnCpu(CpuLane):
    """A CPU's lane that notes what it traces."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.traced: set[Traced] = set()

    def trace(self, what: tuple[Any, ...], function: Callable[..., Any], args: tuple[Any, ...], axes: Any) -> Traced:
        made = super().trace(what, function, args, axes)
        self.traced.add(made)
        return made


class AsOnGpu(GpuLane):
    """A GPU's lane on tensors of the CPU, whose steps are called where a GPU replays them."""

    def __init__(self, site: Site, capture: Any = Replayed, trusted: Callable[[], bool] = lambda: True) -> None:
        super().__init__(site, "cpu", capture, lambda *_: trusted())


LANES: dict[str, Callable[[Site], CpuLane | GpuLane]] = {"cpu": OnCpu, "gpu": AsOnGpu}


def batched(e: Experiment, lane: str = "cpu") -> Batched:
    """The batched executor on the lane of that name."""
    return Batched(e.site, "cpu", LANES[lane](e.site))


E = TypeVar("E", bound=Executor)


@contextmanager
def closing(executor: E) -> Iterator[E]:
    try:
        yield executor
    finally:
        executor.close()


def nothing(client: int) -> None:
    """What clients keep before their first task."""
