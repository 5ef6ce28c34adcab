"""The seam between the clock and the hardware: jobs in, outcomes out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.client.trainer import Outcome, Training
from motley.core.keys import Key
from motley.core.registry import Registry
from motley.core.types import Facts, Tree
from motley.data.federated import FederatedData


class FactsRow(NamedTuple):
    """`Facts` of one client as plain numbers, so that thousands of jobs cost little to make and to stack."""

    client: int
    round: int
    n: float
    labels: NDArray[np.integer[Any]]  # [C]
    lr: float
    epochs: float
    steps: float
    limited: float
    speed: float
    upload: float
    download: float = 0.0
    capability: float = 1.0

    def tensors(self) -> Facts:
        """As one client sees them."""
        client, number, n, labels, *rest = self
        return Facts(
            torch.tensor(client),
            torch.tensor(number),
            torch.tensor(n),
            torch.from_numpy(labels).to(torch.float32),
            *(torch.tensor(value, dtype=torch.float32) for value in rest),
        )


class Job(NamedTuple):
    """One client's task, ready to be trained."""

    client: int
    start: Tensor  # [P]; jobs of one round share it
    facts: FactsRow
    steps: int
    key: Key
    down: dict[str, Tree]  # shared by the jobs of one dispatch
    dials: dict[str, dict[str, Tensor]]
    own: dict[str, Tree] | None


class Executor(Protocol):
    """Trains jobs. The outcome of a job depends on the job alone, never on what else is in the batch."""

    name: str

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcomes in the order of the jobs."""

    def close(self) -> None:
        """Frees processes and memory."""


def n_cores() -> int:
    """Cores this process may use: those of its affinity, which a container or a scheduler may have narrowed."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


EXECUTORS: Registry[Executor] = Registry("executor")
"""Factories ``f(training, data, workers, device) -> Executor``."""

__all__ = ["EXECUTORS", "Executor", "FederatedData", "Job", "Outcome", "Training", "n_cores"]
