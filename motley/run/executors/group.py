"""Clients that the batched executor trains together, and how much of what it computes was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from motley.client.trainer import Span
from motley.core.types import Data, Facts, Tree
from motley.data.federated import FederatedData
from motley.run.executors.base import Job
from motley.run.executors.steps import Shared
from motley.run.executors.tables import ladder
from motley.run.executors.trace import Traced

Drawn = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int]  # keys, index, offsets, sizes, steps, batch size


class Samples(Data):
    """A client's samples by their rows in the training set, fetched when a hook asks for them."""

    def __init__(self, data: FederatedData, rows: Tensor, client: Tensor, mask: Tensor) -> None:
        self._data, self._rows, self._client, self._given = data, rows, client, mask
        self._made: tuple[Tensor, Tensor] | None = None
        self.touched = False

    def _fetch(self) -> tuple[Tensor, Tensor]:
        self.touched = True
        if self._made is None:
            self._made = self._data.gather(self._rows, self._client.expand(self._rows.shape))
        return self._made

    @property
    def x(self) -> Tensor:
        return self._fetch()[0]

    @property
    def y(self) -> Tensor:
        return self._fetch()[1]

    @property
    def mask(self) -> Tensor | None:
        self.touched = True
        return self._given


class Waste(NamedTuple):
    """How much of what was computed was asked for."""

    wanted: int  # sample passes of the jobs
    computed: int  # sample passes including padding

    @property
    def share(self) -> float:
        return 1.0 - self.wanted / max(1, self.computed)

    def plus(self, other: Waste) -> Waste:
        return Waste(self.wanted + other.wanted, self.computed + other.computed)


@dataclass
class Group:
    """Clients that run together, those with most steps first."""

    jobs: list[Job]
    trained: Tensor  # [L], on the host: the layers that are trained, as far as that is known before
    span: Span
    masked: bool  # some layers inside the span are not trained, or parts may freeze layers while training
    shared: Shared
    facts: Facts  # leaves [K]
    start: Tensor  # [P] or [K, P]
    down: dict[str, Tree]
    dials: dict[str, dict[str, Tensor]]
    own: dict[str, Tree] | None
    keys: Tensor  # [K]
    index: Tensor  # sample ids of these clients, or of all of them
    offsets: Tensor  # [K] int64, where each one's samples begin there
    sizes: Tensor  # [K] int64
    steps: Tensor  # [K] int64
    per_epoch: Tensor  # [K] int64
    samples: list[int]  # sizes, on the host
    counts: list[int]  # steps, on the host
    epoch_steps: list[int]  # steps per epoch, on the host
    step: Traced | None = None  # the same for all widths

    def phases(self, ratio: float) -> list[tuple[int, int]]:
        """(width, step it runs until): as clients finish, the batch narrows; widths grow by ``ratio``."""
        widths, total = ladder(len(self.jobs), ratio), max(self.counts)
        found: list[tuple[int, int]] = []
        for width, narrower in zip(reversed(widths), [*reversed(widths[:-1]), 0], strict=True):
            until = min(total, self.counts[narrower])  # as long as more than the narrower width still train
            if until > (found[-1][1] if found else 0):
                found.append((width, until))
        return found

    def epoch_end(self, s: int, until: int) -> int:
        """The first step after s with which some client ends an epoch, ``until`` at most."""
        ends = [(s // n + 1) * n for n, count in zip(self.epoch_steps, self.counts, strict=True) if count > s]
        return min([until, *ends])

    def ended(self, s: int, width: int) -> list[int]:
        """Which of the first ``width`` clients end an epoch with step s."""
        both = zip(self.epoch_steps[:width], self.counts[:width], strict=True)
        return [i for i, (n, count) in enumerate(both) if s < count and (s + 1) % n == 0]

    def waste(self, batch: int, phases: list[tuple[int, int]]) -> Waste:
        """Samples that clients wanted to see, and those computed in these phases."""
        wanted = computed = before = 0
        for job, count, n in zip(self.jobs, self.counts, self.epoch_steps, strict=True):
            wanted += count // n * int(job.facts.n) + min(count % n * batch, int(job.facts.n))
        for width, until in phases:
            computed += width * (until - before) * batch
            before = until
        return Waste(wanted, computed)
