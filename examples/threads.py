"""An executor of one's own: a thread for each client of a round.

    python examples/threads.py

What comes of a task depends on the task alone, so the model is that of every other executor, bit for bit.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from threading import local

import torch

import motley
from motley.extend import (
    EXECUTORS,
    Assignment,
    Count,
    Facts,
    Failed,
    Finished,
    Kept,
    MotleyError,
    Own,
    Site,
    run_task,
)


class Threads:
    """Trains tasks in threads; each thread has a copy of the network, whose module is busy during a forward pass."""

    name = "threads"
    device = torch.device("cpu")

    def __init__(self, site: Site, threads: int) -> None:
        self.site = site
        self.pool = ThreadPoolExecutor(threads)
        self.mine = local()

    def _train(self, a: Assignment, facts: Facts, kept: Kept | None) -> Finished | Failed:
        if not hasattr(self.mine, "site"):
            training = self.site.training
            self.mine.site = replace(self.site, training=replace(training, net=copy.deepcopy(training.net)))
        try:
            return run_task(self.mine.site, a, facts, kept)
        except MotleyError as error:
            return Failed(a.id, error)

    def submit(self, assignments: Sequence[Assignment], own: Own) -> Iterator[Finished | Failed]:
        facts = self.site.facts(assignments)
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            tasks = [self.pool.submit(self._train, a, facts.row(k), own(a.client)) for k, a in enumerate(assignments)]
            for task in as_completed(tasks):
                yield task.result()
        finally:
            torch.set_num_threads(before)

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


@EXECUTORS.add("threads", hidden=("site",))
def make_threads(site: Site, threads: Count = 4) -> Threads:
    """A thread for each client that trains."""
    return Threads(site, threads)


if __name__ == "__main__":
    mine = motley.run("digits", rounds=10, executor="threads(threads=3)")
    reference = motley.run("digits", rounds=10, executor="loop")
    same = mine.summary["model_sha256"] == reference.summary["model_sha256"]
    print(f"accuracy {mine.accuracy:.3f}; the model is {'the same' if same else 'ANOTHER'} as with one after the other")
