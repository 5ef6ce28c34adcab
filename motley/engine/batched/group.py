"""Clients that the batched executor trains together, and how much of what it computes was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from motley.client.trainer import Span
from motley.core.tasks import Assignment
from motley.core.types import Data, Facts, Tree
from motley.data.federated import FederatedData
from motley.engine.batched.minibatches import Counts, ladder
from motley.engine.batched.steps import Shared
from motley.engine.batched.trace import Traced


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

    wanted: int  # sample passes of the tasks
    computed: int  # sample passes including padding

    @property
    def share(self) -> float:
        return 1.0 - self.wanted / max(1, self.computed)

    def plus(self, other: Waste) -> Waste:
        return Waste(self.wanted + other.wanted, self.computed + other.computed)


class Drawn(NamedTuple):
    """What the minibatches of K clients are drawn from."""

    keys: Tensor  # [K]
    pool: Tensor  # sample ids of these clients, or of all of them
    offsets: Tensor  # [K] int64, where each one's samples begin there
    sizes: Tensor  # [K] int64
    steps: Tensor  # [K] int64
    batch_size: int


@dataclass
class Group:
    """Clients that run together, those with most steps first; the last ones may be padding, which trains nothing."""

    tasks: list[Assignment]  # without padding
    trained: Tensor  # [L], on the host: the layers that are trained, as far as that is known before
    span: Span
    masked: bool  # some layers inside the span are not trained, or parts may freeze layers while training
    shared: Shared
    told: Facts  # of the tasks, on the host
    facts: Facts  # leaves [K], with padding
    start: Tensor  # [P] or [K, P]
    down: dict[str, Tree]
    dials: dict[str, dict[str, Tensor]]
    own: dict[str, Tree]
    drawn: Drawn
    per_epoch: Tensor  # [K] int64, steps of an epoch
    samples: list[int]  # sizes, on the host
    counts: list[int]  # steps, on the host; 0 for padding
    epoch_steps: list[int]  # steps per epoch, on the host
    step: Traced | None = None  # the same for all widths

    @property
    def width(self) -> int:
        """How many clients there are, with padding."""
        return len(self.counts)

    @property
    def on_host(self) -> Counts:
        return Counts(self.samples, self.counts)

    def phases(self, ratio: float) -> list[tuple[int, int]]:
        """(width, step it runs until): as clients finish, the batch narrows; widths grow by ``ratio``."""
        widths, total = ladder(self.width, ratio), max(self.counts)
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
        for size, count, n in zip(self.samples, self.counts, self.epoch_steps, strict=True):
            wanted += count // n * size + min(count % n * batch, size)
        for width, until in phases:
            computed += width * (until - before) * batch
            before = until
        return Waste(wanted, computed)
