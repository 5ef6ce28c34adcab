"""A pool of processes, one torch thread each. Data and models lie in shared memory and are sent once."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait

import torch
from torch import Tensor

from motley.client.site import Site
from motley.core.codec import dumps, loads
from motley.core.errors import InputError, MotleyError
from motley.core.stacking import tree_bytes
from motley.core.tasks import Assignment, Failed, Finished, Weights
from motley.core.types import Facts, Tree
from motley.engine.executor import EXECUTORS, Own, n_cores
from motley.engine.loop import one_thread, run_task
from motley.engine.memory import keep_memory
from motley.engine.reports import Rows
from motley.engine.worker import (
    Memory,
    Workers,
    answer,
    died,
    facts_from,
    facts_rows,
    finished_from,
    finished_tree,
    received,
    shared,
    shared_site,
    task_tree,
)

SURE_TO_FIT = 1 << 12  # bytes of arrays that a pipe takes whether or not its reader reads
SLOTS = 64  # models that tasks under way start from, in shared memory
PLACES = 2  # where a worker leaves its changes by turns


def _serve(pipe: Connection, site: Site, starts: Tensor, landing: Tensor) -> None:
    """Receives a task, trains it, sends what came of it; changes of weights stay in ``landing[place]``."""
    memory = Memory()
    while message := pipe.recv_bytes():
        tree = loads(message, memory)
        memory.learn(tree["task"]["down"])
        trouble = f"Client {tree['task']['client']} failed in a worker process"
        pipe.send_bytes(answer(partial(_trained, site, tree, starts, landing), trouble))


def _trained(site: Site, tree: Tree, starts: Tensor, landing: Tensor) -> Tree:
    task = dict(tree["task"])
    own = task.pop("own")
    a = Assignment.from_tree({**task, "start": Weights(starts[tree["slot"]].clone(), "shared")})
    done = run_task(site, a, facts_from(tree["facts"]), own)
    payload = done.report.payload
    if isinstance(payload, Tensor) and payload.shape == landing[tree["place"]].shape:
        landing[tree["place"]].copy_(payload)
        done = done._replace(report=done.report._replace(payload=None))
    return finished_tree(done)


class Pool:
    """Spreads tasks over worker processes; each worker takes the next one as soon as it is free.

    While tasks abound a worker has its next one before it ends the last, and leaves its changes by turns in two places,
    so that it never waits for this process to take them. A worker that dies fails the task it was training; the others
    go on without it.
    """

    name = "pool"
    device = torch.device("cpu")

    def __init__(self, site: Site, workers: int) -> None:
        if workers < 1:
            raise InputError(f"A pool needs at least one worker, not {workers}.")
        keep_memory()
        self.site = shared_site(site)
        size = site.training.net.size
        self.starts = shared(torch.zeros(SLOTS, size))
        landing = shared(torch.zeros(workers, PLACES, size))
        self.workers = Workers(_serve, [(self.site, self.starts, places) for places in landing])
        self._landing = dict(zip(self.workers.pipes, landing, strict=True))
        self._known = {pipe: Memory() for pipe in self.workers.pipes}

    def submit(self, assignments: Sequence[Assignment], own: Own) -> Iterator[Finished | Failed]:
        hand = _Hand(assignments, self.site.facts(assignments), _Slots(self.starts), self.workers.pipes)
        rows = Rows(len(assignments))
        try:
            with one_thread():  # a second would take the time of a worker
                while hand.given and (hand.queue or any(hand.given.values())):
                    self._hand_out(hand, own)
                    for ready in wait([pipe for pipe, waiting in hand.given.items() if waiting]):
                        assert isinstance(ready, Connection)
                        yield self._take(hand, ready, rows)
                yield from (Failed(hand.tasks[i].id, died(hand.tasks[i].client)) for i in hand.queue)
        except KeyboardInterrupt:
            hand.given.clear()  # it may have come between a message and our note of it: what is under way is not known
            self.workers.stop()
            raise
        finally:
            self._abandon(hand)

    def _take(self, hand: _Hand, pipe: Connection, rows: Rows) -> Finished | Failed:
        data = self.workers.receive(pipe)
        index, place = hand.take_back(pipe)
        a = hand.tasks[index]
        if data is None:
            self._drop(hand, pipe)
            return Failed(a.id, died(a.client))
        try:
            done = finished_from(received(data))
        except MotleyError as error:
            return Failed(a.id, error)
        if done.report.payload is None:
            payload = rows.put(index, self._landing[pipe][place])
            done = done._replace(report=done.report._replace(payload=payload))
        return done

    def _hand_out(self, hand: _Hand, own: Own) -> None:
        """A task to everyone who has none, then a second one to whoever has no more than a share of what is left.

        The second waits in the pipe while the first is trained, so it goes ahead only if it is sure to fit there: this
        process must not wait for a worker that waits for it.
        """
        for ahead in (False, True):
            for pipe in list(hand.given):
                if not hand.can_go_on:
                    return
                if hand.may_have(pipe, ahead) and not self._give_next(hand, pipe, own, ahead):
                    return

    def _give_next(self, hand: _Hand, pipe: Connection, own: Own, ahead: bool) -> bool:
        """Sends a worker the next task; False where it is not sure to fit into the pipe, and so has to wait."""
        index, waiting = hand.queue[0], hand.given[pipe]
        place = 1 - waiting[-1][1] if waiting else 0
        kept = own(hand.tasks[index].client)
        if ahead and self._bulk(pipe, hand.tasks[index], kept, hand.facts) > SURE_TO_FIT:
            return False
        if self._give(hand, pipe, kept, index, place):
            hand.queue.popleft()
        elif not waiting:
            self._drop(hand, pipe)  # otherwise whoever waits for it finds it dead
        return True

    def _drop(self, hand: _Hand, pipe: Connection) -> None:
        """Goes on without a worker that has died; what it had not begun is left to the others."""
        while hand.given[pipe]:
            hand.queue.appendleft(hand.take_back(pipe, newest=True)[0])
        del hand.given[pipe]
        self.workers.drop(pipe)

    def _give(self, hand: _Hand, pipe: Connection, kept: Tree, index: int, place: int) -> bool:
        """Sends a worker a task, which will leave its change at this place; whether the worker was there to take it."""
        a = hand.tasks[index]
        tree = {
            "task": task_tree(a, kept),
            "facts": hand.told[index],
            "slot": hand.slots.take(a.start),
            "place": place,
        }
        hand.given[pipe].append((index, place))
        if not self.workers.send(pipe, dumps(tree, self._known[pipe].refs)):
            hand.take_back(pipe, newest=True)
            return False
        self._known[pipe].learn(a.down)
        return True

    def _bulk(self, pipe: Connection, a: Assignment, kept: Tree, facts: Facts) -> int:
        """Bytes of the arrays that travel with a task."""
        down = 0 if not a.down.tree or a.down.ref in self._known[pipe] else tree_bytes(a.down.tree)
        return down + 4 * facts.labels.shape[-1] + tree_bytes(kept)

    def _abandon(self, hand: _Hand) -> None:
        """Waits for tasks under way, so that nobody takes what comes of them for that of later ones."""
        for pipe, waiting in hand.given.items():
            with contextlib.suppress(EOFError, OSError):
                for _ in waiting:
                    pipe.recv_bytes()
            waiting.clear()

    def close(self) -> None:
        self.workers.close()


class _Hand:
    """Some tasks: those still to be handed out, and which worker has which."""

    def __init__(self, tasks: Sequence[Assignment], facts: Facts, slots: _Slots, pipes: list[Connection]) -> None:
        self.tasks, self.facts, self.slots = tasks, facts, slots
        # The tasks of each worker, oldest first, with the place where it leaves its changes.
        self.given: dict[Connection, deque[tuple[int, int]]] = {pipe: deque() for pipe in pipes}
        self.told = facts_rows(facts)
        self._steps: list[float] = facts.steps.tolist()
        # The longest first, so that no worker is left alone with a long one at the end.
        self.queue = deque(sorted(range(len(tasks)), key=lambda i: (-self._steps[i], i)))

    @property
    def can_go_on(self) -> bool:
        """Whether there is a next task, and room for the model it starts from."""
        return bool(self.queue) and self.slots.has_room(self.tasks[self.queue[0]].start)

    def take_back(self, pipe: Connection, newest: bool = False) -> tuple[int, int]:
        """The oldest task that a worker has, or its newest, and the place of its change; it has it no longer."""
        index, place = self.given[pipe].pop() if newest else self.given[pipe].popleft()
        self.slots.give(self.tasks[index].start)
        return index, place

    def may_have(self, pipe: Connection, ahead: bool) -> bool:
        """Whether a worker may get a task: its only one, or a second one ahead of time."""
        return len(self.given[pipe]) <= ahead and (not ahead or self.fair(pipe))

    def fair(self, pipe: Connection) -> bool:
        """Whether a worker has no more to do than an equal share of what nobody has yet."""
        left = sum(self._steps[i] for i in self.queue)
        return sum(self._steps[i] for i, _ in self.given[pipe]) * len(self.given) <= left


class _Slots:
    """Which shared slot holds which model, by its content, and how many running tasks read it."""

    def __init__(self, starts: Tensor) -> None:
        self.starts = starts
        self.free = list(range(len(starts)))[::-1]
        self.used: dict[str, tuple[int, int]] = {}  # digest of the model -> slot, readers

    def has_room(self, start: Weights) -> bool:
        return bool(self.free) or start.ref in self.used

    def take(self, start: Weights) -> int:
        if start.ref in self.used:
            slot, readers = self.used[start.ref]
        else:
            slot, readers = self.free.pop(), 0
            self.starts[slot] = start.value
        self.used[start.ref] = (slot, readers + 1)
        return slot

    def give(self, start: Weights) -> None:
        slot, readers = self.used[start.ref]
        if readers > 1:
            self.used[start.ref] = (slot, readers - 1)
        else:
            del self.used[start.ref]
            self.free.append(slot)


@EXECUTORS.add("pool", hidden=("site",))
def make_pool(site: Site, workers: int = 0) -> Pool:
    """A pool of processes with one thread each; as many workers as cores unless told."""
    return Pool(site, workers or n_cores())
