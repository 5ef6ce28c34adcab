"""Worker processes that each train many clients as one computation: the batched executor on every core of a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait

import torch

from motley.client.site import Site
from motley.core.codec import dumps, loads
from motley.core.errors import MotleyError
from motley.core.tasks import Assignment, Failed, Finished
from motley.core.types import Tree
from motley.engine.batched.group import Waste
from motley.engine.batched.mapping import refuse_unmapped
from motley.engine.batched.together import Batched
from motley.engine.device import moved, pick
from motley.engine.executor import EXECUTORS, Own
from motley.engine.worker import (
    Memory,
    Workers,
    answer,
    died,
    error_from,
    error_tree,
    finished_from,
    finished_tree,
    received,
    shared_site,
)


def _serve(pipe: Connection, site: Site) -> None:
    """Receives tasks, trains them together, sends what came of them and how much was computed in vain."""
    executor = Batched(site, "cpu")
    memory = Memory()
    while message := pipe.recv_bytes():
        tree = loads(message, memory)
        memory.learn(*(task[name] for task in tree["tasks"] for name in ("start", "down")))
        pipe.send_bytes(answer(partial(_trained, executor, tree), "A worker process failed"))


def _trained(executor: Batched, tree: Tree) -> Tree:
    own = {task["client"]: task.pop("own") for task in tree["tasks"]}
    tasks = [Assignment.from_tree(task) for task in tree["tasks"]]
    done = list(executor.submit(tasks, own.get))
    return {
        "made": [finished_tree(one) for one in done if isinstance(one, Finished)],
        "failed": [{"id": one.id, "error": error_tree(one.error)} for one in done if isinstance(one, Failed)],
        "waste": tuple(executor.waste),
    }


def deal(steps: Sequence[float], hands: int) -> list[list[int]]:
    """Tasks dealt out, the longest first, each to whoever has the fewest steps so far."""
    dealt: list[list[int]] = [[] for _ in range(hands)]
    held = [0.0] * hands
    for i in sorted(range(len(steps)), key=lambda i: (-steps[i], i)):
        least = held.index(min(held))
        dealt[least].append(i)
        held[least] += steps[i]
    return dealt


class BatchedPool:
    """Deals the tasks of a round out to worker processes, as many steps to each, and gathers what comes of them."""

    name = "batched"
    device = torch.device("cpu")

    def __init__(self, site: Site, workers: int) -> None:
        placed = Site(site.training, moved(site.data, self.device), site.devices)  # scaled once, then shared
        self.site = shared_site(placed)
        self.workers = Workers(_serve, [(self.site,)] * workers)
        self._known = {pipe: Memory() for pipe in self.workers.pipes}
        self._wasted: dict[Connection, Waste] = {}

    @property
    def waste(self) -> Waste:
        """How much of what was computed so far was asked for."""
        counted = self._wasted.values()
        return Waste(sum(one.wanted for one in counted), sum(one.computed for one in counted))

    def submit(self, assignments: Sequence[Assignment], own: Own) -> Iterator[Finished | Failed]:
        if not self.workers.pipes:
            yield from _failed(assignments)
            return
        busy = self._dealt(assignments)
        gone = [pipe for pipe, tasks in busy.items() if not self._give(pipe, tasks, own)]
        try:
            for pipe in gone:
                yield from self._lost(pipe, busy.pop(pipe))
            while busy:
                for ready in wait(list(busy)):
                    assert isinstance(ready, Connection)
                    yield from self._take(ready, busy.pop(ready))
        except KeyboardInterrupt:
            busy.clear()
            self.workers.stop()
            raise
        finally:
            for pipe in busy:  # so that nobody takes what comes of these tasks for that of later ones
                self.workers.receive(pipe)

    def _dealt(self, assignments: Sequence[Assignment]) -> dict[Connection, list[Assignment]]:
        """The tasks of each worker that gets any."""
        pipes = list(self.workers.pipes)
        shares = deal(self.site.facts(assignments).steps.tolist(), len(pipes))
        return {pipe: [assignments[i] for i in share] for pipe, share in zip(pipes, shares, strict=True) if share}

    def _give(self, pipe: Connection, tasks: list[Assignment], own: Own) -> bool:
        """Sends a worker its tasks; whether it was there to take them."""
        trees = [{**a.to_tree(), "own": own(a.client)} for a in tasks]
        taken = self.workers.send(pipe, dumps({"tasks": trees}, self._known[pipe].refs))
        self._known[pipe].learn(*(content for a in tasks for content in (a.start, a.down)))
        return taken

    def _take(self, pipe: Connection, tasks: list[Assignment]) -> Iterator[Finished | Failed]:
        data = self.workers.receive(pipe)
        if data is None:
            yield from self._lost(pipe, tasks)
            return
        try:
            reply = received(data)
        except MotleyError as error:
            yield from (Failed(a.id, error) for a in tasks)
            return
        self._wasted[pipe] = Waste(*reply["waste"])
        yield from map(finished_from, reply["made"])
        yield from (Failed(one["id"], error_from(one["error"])) for one in reply["failed"])

    def _lost(self, pipe: Connection, tasks: list[Assignment]) -> Iterator[Failed]:
        """Goes on without a worker that has died; whoever gave its tasks may give them again."""
        self.workers.drop(pipe)
        return _failed(tasks)

    def close(self) -> None:
        self.workers.close()


def _failed(tasks: Sequence[Assignment]) -> Iterator[Failed]:
    """Tasks whose worker has died."""
    return (Failed(a.id, died(a.client)) for a in tasks)


@EXECUTORS.add("batched", hidden=("site",))
def make_batched(site: Site, workers: int = 0, device: str = "auto") -> Batched | BatchedPool:
    """Many clients as one computation; on a GPU replayed as CUDA graphs, on a CPU in ``workers`` processes."""
    refuse_unmapped(site)
    if workers > 1 and pick(device) == "cpu":
        return BatchedPool(site, workers)
    return Batched(site, device)
