"""Worker processes that each train many clients as one computation: the batched executor on every core of a CPU."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from motley.client.trainer import Outcome, Training
from motley.core.errors import MotleyError, TrainingError
from motley.data.federated import FederatedData
from motley.run.executors.base import EXECUTORS, Job
from motley.run.executors.batched import Batched
from motley.run.executors.group import Waste
from motley.run.executors.place import moved, pick
from motley.run.executors.pool import Pool, from_wire, to_wire


def _serve_together(pipe: Connection, training: Training, data: FederatedData, starts: Tensor, landing: Tensor) -> None:
    """Receives jobs, trains them together, sends their outcomes and what was computed in vain, again and again."""
    executor = Batched(training, data, "cpu")
    while message := pipe.recv_bytes():
        try:
            outcomes = executor.run(_unpacked(pickle.loads(message)))
            reply: Any = [tuple(to_wire(outcome)) for outcome in outcomes], tuple(executor.waste)
        except MotleyError as error:
            reply = error
        except Exception as error:
            reply = TrainingError(f"A worker process failed: {type(error).__name__}: {error}")
        pipe.send_bytes(pickle.dumps(reply, protocol=5))


class _Memo:
    """Converts trees, each one once: jobs that share a tree share what it becomes."""

    def __init__(self, convert: Any) -> None:
        self.convert = convert
        self.made: dict[int, tuple[Any, Any]] = {}

    def __call__(self, tree: Any) -> Any:
        if id(tree) not in self.made:
            self.made[id(tree)] = tree, self.convert(tree)  # the original is held, so that its id stays its own
        return self.made[id(tree)][1]


def _packed(jobs: Sequence[Job]) -> list[tuple[Any, ...]]:
    wire = _Memo(to_wire)
    return [
        (job.client, wire(job.start), job.facts, job.steps, job.key, wire(job.down), wire(job.dials), to_wire(job.own))
        for job in jobs
    ]


def _unpacked(packed: list[tuple[Any, ...]]) -> list[Job]:
    tree = _Memo(from_wire)
    return [
        Job(client, tree(start), facts, steps, key, tree(down), tree(dials), from_wire(own))
        for client, start, facts, steps, key, down, dials, own in packed
    ]


def deal(steps: Sequence[int], hands: int) -> list[list[int]]:
    """Jobs dealt out, the longest first, each to whoever has the fewest steps so far."""
    dealt: list[list[int]] = [[] for _ in range(hands)]
    held = [0] * hands
    for i in sorted(range(len(steps)), key=lambda i: (-steps[i], i)):
        least = held.index(min(held))
        dealt[least].append(i)
        held[least] += steps[i]
    return dealt


class Crew(Pool):
    """Deals the jobs of a round out to worker processes, as many steps to each, and gathers the outcomes."""

    name = "batched"
    device = torch.device("cpu")
    serve = staticmethod(_serve_together)
    n_slots = n_places = 1  # models and changes travel with the jobs

    def __init__(self, training: Training, data: FederatedData, workers: int) -> None:
        super().__init__(training, moved(data, self.device), workers)  # scaled once, then shared
        self.waste = Waste(0, 0)

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        shares = deal([job.steps for job in jobs], len(self.pipes))
        busy = [(pipe, share) for pipe, share in zip(self.pipes, shares, strict=True) if share]
        for pipe, share in busy:
            pipe.send_bytes(pickle.dumps(_packed([jobs[i] for i in share]), protocol=5))
        outcomes: dict[int, Outcome] = {}
        counted = []
        for pipe, share in busy:
            found, waste = self._receive(pipe, jobs[share[0]])
            counted.append(Waste(*waste))
            outcomes.update((i, Outcome(*from_wire(one))) for i, one in zip(share, found, strict=True))
        self.waste = Waste(sum(one.wanted for one in counted), sum(one.computed for one in counted))
        return [outcomes[i] for i in range(len(jobs))]


@EXECUTORS.add("batched", hidden=("training", "data", "workers", "device"))
def make_batched(training: Training, data: FederatedData, workers: int = 0, device: str = "auto") -> Batched | Crew:
    """Many clients as one computation; on a GPU replayed as CUDA graphs, on a CPU in ``workers`` processes."""
    if workers > 1 and pick(device) == "cpu":
        return Crew(training, data, workers)
    return Batched(training, data, device)
