"""One client after the other, in this process: the reference, and the one to step through with a debugger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from motley.client.trainer import Outcome, Task, Training, train
from motley.data.federated import FederatedData
from motley.run.executors.base import EXECUTORS, Job
from motley.run.executors.memory import keep_memory
from motley.run.executors.outcomes import Rows


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread per client, so that results do not depend on how many clients run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_job(training: Training, data: FederatedData, job: Job) -> Outcome:
    """Trains one job."""
    task = Task(job.start, job.facts.tensors(), job.key.tensor(), job.down, job.own, job.dials)
    return train(training, task, data.client(job.client))


class Loop:
    """Trains jobs one by one on the CPU."""

    name = "loop"

    def __init__(self, training: Training, data: FederatedData) -> None:
        keep_memory()
        self.training = training
        self.data = data

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        rows = Rows(len(jobs))
        outcomes = []
        with one_thread():
            for place, job in enumerate(jobs):
                outcome = run_job(self.training, self.data, job)
                if isinstance(outcome.payload, Tensor) and outcome.payload.shape == job.start.shape:
                    outcome = outcome._replace(payload=rows.put(place, outcome.payload))
                outcomes.append(outcome)
        return outcomes

    def close(self) -> None:
        """Nothing to free."""


@EXECUTORS.add("loop", hidden=("training", "data", "workers", "device"))
def make_loop(training: Training, data: FederatedData, workers: int = 0, device: str = "auto") -> Loop:
    """One client after the other in this process; the reference."""
    return Loop(training, data)
