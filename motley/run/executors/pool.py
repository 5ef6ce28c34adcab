"""A pool of processes, one torch thread each. Data and models lie in shared memory and are sent once."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from motley.client.trainer import Outcome, Training
from motley.core.errors import InputError, MotleyError, TrainingError
from motley.core.types import tree_bytes
from motley.data.federated import FederatedData
from motley.run.executors.base import EXECUTORS, Job, n_cores
from motley.run.executors.loop import one_thread, run_job
from motley.run.executors.memory import keep_memory
from motley.run.executors.outcomes import Rows


def to_wire(tree: Any) -> Any:
    """Tensors as arrays: plain bytes in a pickle, no shared-memory handles for small things."""
    return tree_map(lambda leaf: leaf.numpy() if isinstance(leaf, Tensor) else leaf, tree)


def from_wire(tree: Any) -> Any:
    import numpy as np

    # Cloned: matrix products give other bits where their inputs are aligned otherwise than torch aligns its own.
    return tree_map(lambda leaf: torch.from_numpy(leaf).clone() if isinstance(leaf, np.ndarray) else leaf, tree)


def _work(serve: Callable[..., None], pipe: Connection, *given: Any) -> None:
    """The life of a worker: it serves until its pipe says that the run has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    keep_memory()
    with contextlib.suppress(EOFError, OSError):  # the run has ended, perhaps while this client trained
        serve(pipe, *given)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # taking the interpreter down in order takes seconds, and there is nothing to save


def _serve(pipe: Connection, training: Training, data: FederatedData, starts: Tensor, landing: Tensor) -> None:
    """Receives a job, trains it, sends the outcome, again and again; changes of weights stay in ``landing[row]``."""
    while message := pipe.recv_bytes():
        job, slot, row = pickle.loads(message)
        try:
            outcome = run_job(training, data, _unpack(job)._replace(start=starts[slot].clone()))
            if isinstance(outcome.payload, Tensor) and outcome.payload.shape == landing[row].shape:
                landing[row].copy_(outcome.payload)
                outcome = outcome._replace(payload=None)
            reply: Any = tuple(to_wire(outcome))
        except MotleyError as error:
            reply = error
        except Exception as error:
            reply = TrainingError(f"Client {job[0]} failed in a worker process: {type(error).__name__}: {error}")
        pipe.send_bytes(pickle.dumps(reply, protocol=5))


def _pack(job: Job) -> tuple[Any, ...]:
    return (job.client, job.facts, job.steps, job.key, *map(to_wire, (job.down, job.dials, job.own)))


def _bulk(job: Job) -> int:
    """Bytes of the arrays that travel with a job."""
    return job.facts.labels.nbytes + tree_bytes((job.down, job.dials, job.own))


def _unpack(packed: tuple[Any, ...]) -> Job:
    client, facts, steps, key, down, dials, own = packed
    return Job(client, torch.empty(0), facts, steps, key, from_wire(down), from_wire(dials), from_wire(own))


SURE_TO_FIT = 1 << 12  # bytes of arrays that a pipe takes whether or not its reader reads


class Pool:
    """Spreads jobs over worker processes; each worker takes the next job as soon as it is free.

    While jobs abound a worker has its next one before it ends the last, and leaves its changes by turns in two places,
    so that it never waits for this process to take them.
    """

    name = "pool"
    serve = staticmethod(_serve)
    n_slots = 64  # models that jobs in flight start from, in shared memory
    n_places = 2  # where a worker leaves its changes by turns

    def __init__(self, training: Training, data: FederatedData, workers: int) -> None:
        if workers < 1:
            raise InputError(f"A pool needs at least one worker, not {workers}.")
        keep_memory()
        context = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # its start would unblock what `_no_interrupts` blocks
        self.starts = torch.zeros(self.n_slots, training.net.size).share_memory_()
        landing = torch.zeros(workers, self.n_places, training.net.size).share_memory_()
        self.landing: dict[Connection, Tensor] = {}  # where each worker leaves its changes: [2, P]
        dataset = data.dataset
        for tensor in (dataset.x, dataset.y):
            tensor.share_memory_()
        self.data = data
        self.pipes: list[Connection] = []
        self.processes = []
        for places in landing:
            ours, theirs = context.Pipe()
            given = (self.serve, theirs, training, data, self.starts, places)
            process = context.Process(target=_work, args=given, daemon=True)
            try:
                with _quiet_threads(), _no_interrupts():
                    process.start()
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                self.close()
                raise InputError(
                    f"The run cannot be sent to worker processes: {error}; "
                    "define models, schedules and parts at the top of a module, or use executor=loop."
                ) from None
            theirs.close()
            self.pipes.append(ours)
            self.landing[ours] = places
            self.processes.append(process)

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        with one_thread():  # a second would take the time of a worker
            return self._run(jobs)

    def _run(self, jobs: Sequence[Job]) -> list[Outcome]:
        outcomes: list[Outcome | None] = [None] * len(jobs)
        rows = Rows(len(jobs))
        hand = _Hand(jobs, _Slots(self.starts), {pipe: deque() for pipe in self.pipes})
        try:
            while hand.queue or any(hand.given.values()):
                self._hand_out(hand)
                for ready in wait([pipe for pipe, waiting in hand.given.items() if waiting]):
                    assert isinstance(ready, Connection)
                    index, place = hand.given[ready].popleft()
                    outcome = Outcome(*from_wire(self._receive(ready, jobs[index])))
                    if outcome.payload is None:
                        outcome = outcome._replace(payload=rows.put(index, self.landing[ready][place]))
                    outcomes[index] = outcome
                    hand.slots.give(jobs[index].start)
        except Exception:
            self._abandon(hand)
            raise
        return [outcome for outcome in outcomes if outcome is not None]

    def _hand_out(self, hand: _Hand) -> None:
        """A job to everyone who has none, then a second one to whoever has no more than a share of what is left.

        The second waits in the pipe while the first is trained, so it goes ahead only if it is sure to fit there: this
        process must not wait for a worker that waits for it.
        """
        for ahead in (False, True):
            for pipe, waiting in hand.given.items():
                if not hand.queue or not hand.slots.has_room(hand.jobs[hand.queue[0]].start):
                    return
                if len(waiting) > ahead or (ahead and not hand.fair(pipe)):
                    continue
                index, place = hand.queue[0], 1 - waiting[-1][1] if waiting else 0
                job = hand.jobs[index]
                if ahead and _bulk(job) > SURE_TO_FIT:
                    return
                hand.queue.popleft()
                message = pickle.dumps((_pack(job), hand.slots.take(job.start), place), protocol=5)
                try:
                    pipe.send_bytes(message)
                except OSError:
                    raise _died(job) from None
                waiting.append((index, place))

    def _abandon(self, hand: _Hand) -> None:
        """Waits for jobs under way, so that nobody takes their outcomes for those of later ones."""
        for pipe, waiting in hand.given.items():
            with contextlib.suppress(EOFError, OSError):
                for _ in waiting:
                    pipe.recv_bytes()

    def _receive(self, pipe: Connection, job: Job) -> Any:
        try:
            reply = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            raise _died(job) from None
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send_bytes(b"")
                pipe.close()
        for process in self.processes:
            process.join(timeout=2)
            if process.is_alive():
                process.terminate()
                process.join()
        self.pipes, self.processes = [], []


def _died(job: Job) -> TrainingError:
    return TrainingError(
        f"A worker process died while training client {job.client}, perhaps for lack of memory; "
        "use fewer workers (workers=...) or executor=loop."
    )


class _Hand:
    """The jobs of a run: those still to be handed out, and which worker has which."""

    def __init__(self, jobs: Sequence[Job], slots: _Slots, given: dict[Connection, deque[tuple[int, int]]]) -> None:
        self.jobs, self.slots = jobs, slots
        self.given = given  # the jobs of each worker, oldest first, with the place where it leaves its changes
        # The longest first, so that no worker is left alone with a long job at the end.
        self.queue = deque(sorted(range(len(jobs)), key=lambda i: (-jobs[i].steps, i)))

    def fair(self, pipe: Connection) -> bool:
        """Whether a worker has no more to do than an equal share of what nobody has yet."""
        left = sum(self.jobs[i].steps for i in self.queue)
        return sum(self.jobs[i].steps for i, _ in self.given[pipe]) * len(self.given) <= left


class _Slots:
    """Which shared slot holds which start model, and how many running jobs read it."""

    def __init__(self, starts: Tensor) -> None:
        self.starts = starts
        self.free = list(range(len(starts)))[::-1]
        self.used: dict[int, tuple[int, int]] = {}  # id of the tensor -> slot, readers

    def has_room(self, start: Tensor) -> bool:
        return bool(self.free) or id(start) in self.used

    def take(self, start: Tensor) -> int:
        if id(start) in self.used:
            slot, readers = self.used[id(start)]
        else:
            slot, readers = self.free.pop(), 0
            self.starts[slot] = start
        self.used[id(start)] = (slot, readers + 1)
        return slot

    def give(self, start: Tensor) -> None:
        slot, readers = self.used[id(start)]
        if readers > 1:
            self.used[id(start)] = (slot, readers - 1)
        else:
            del self.used[id(start)]
            self.free.append(slot)


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Children begun in here never see Ctrl-C, which is the parent's to handle; the parent sees it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _quiet_threads() -> Iterator[None]:
    """Children must not start threads of their own while they import."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@EXECUTORS.add("pool", hidden=("training", "data", "workers", "device"))
def make_pool(training: Training, data: FederatedData, workers: int = 0, device: str = "auto") -> Pool:
    """A pool of processes with one thread each; as many workers as cores unless told."""
    return Pool(training, data, workers or n_cores())
