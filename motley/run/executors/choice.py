"""Which executor a run gets when it does not say: batched on a GPU; on a CPU by what a few steps take."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace

import torch

from motley.core.keys import Key
from motley.core.part import compose
from motley.run.executors.base import Executor, FactsRow, Job, Training, n_cores
from motley.run.executors.base import FederatedData as Data
from motley.run.executors.batched import Batched
from motley.run.executors.loop import Loop

SHORT = 10.0  # seconds of work below which nothing is worth a start-up
TINY = 50_000  # parameters up to which clients batched on a CPU may beat a loop
GAIN = 2.0  # how much faster the batched executor must be to be taken on a CPU
STEPS = 8  # steps that are timed


def choose(
    training: Training, data: Data, *, device: str, workers: int, cohort: int, rounds: int, epochs: float
) -> str:
    """The name of the executor for a run of so many rounds.

    Loop and pool give the same bits; the batched executor agrees within float tolerance, so on a CPU it is taken only
    where it is clearly faster. A run keeps its executor when it is resumed.
    """
    if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()):
        return "batched"
    cohort = min(cohort, data.n_clients)
    steps = epochs * float(data.sizes.mean()) / training.batch_size
    total = rounds * cohort * max(1.0, steps)
    plain = replace(training, method=compose(name="rehearsal"))  # what parts send and keep costs little beside it
    per_step = _seconds(Loop(plain, data), plain, data, 1) / STEPS
    if per_step * total < SHORT:
        return "loop"
    if training.net.size <= TINY and cohort >= 4:
        width = min(cohort, 32)
        together = _seconds(Batched(plain, data, "cpu"), plain, data, width) / (STEPS * width)
        if together * GAIN < per_step / (workers or n_cores() if _may_fork() else 1):
            return "batched"
    return "pool" if _may_fork() and (workers or n_cores()) > 1 and _travels(training) else "loop"


def _may_fork() -> bool:
    """Worker processes import the main module again, so a script without a guard must not get them unasked."""
    main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return os.path.basename(main) in ("motley", "motley.exe", "__main__.py")


def _travels(training: Training) -> bool:
    return all(part.origin is not None for part in training.method.parts)


def _seconds(executor: Executor, training: Training, data: Data, width: int) -> float:
    """Seconds for a few steps of ``width`` clients, after a warm-up."""
    key = Key.root(0).fold("rehearsal")
    start = training.net.initial()
    clients = [client % data.n_clients for client in range(width)]
    jobs = [_job(training, data, client, start, key) for client in clients]
    try:
        executor.run([job._replace(steps=1) for job in jobs])
        executor.run(jobs)
        begun = time.perf_counter()
        executor.run(jobs)
        return time.perf_counter() - begun
    finally:
        executor.close()


def _job(training: Training, data: Data, client: int, start: torch.Tensor, key: Key) -> Job:
    n = float(data.sizes[client])
    facts = FactsRow(client, 1, n, data.labels_of(client), 1e-3, 1.0, float(STEPS), 0.0, 1.0, 1.0)
    return Job(client, start, facts, STEPS, key.fold(client), {}, {}, None)
