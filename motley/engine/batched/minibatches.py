"""Minibatch tables: which sample each of K clients sees in each step, computed for all of them at once.

The draws are those of `motley.client.trainer.minibatches`, so a batched run sees exactly the batches of a loop run.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from motley.core.keys import bits, fold_in

_LAST = torch.iinfo(torch.int64).max


class Table(NamedTuple):
    """Rows of the training set and which of them are padding."""

    rows: Tensor  # [S, K, B] int64
    mask: Tensor | None  # [S, K, B] float32, None where nothing is padded


def same(one: Table, other: Table) -> bool:
    """Whether two tables are equal number for number."""
    masks = one.mask is other.mask if one.mask is None or other.mask is None else torch.equal(one.mask, other.mask)
    return bool(torch.equal(one.rows, other.rows)) and masks


class Counts(NamedTuple):
    """Samples and steps of each client, on the host."""

    samples: list[int]
    steps: list[int]


def orders(keys: Tensor, sizes: Tensor, epochs: int, least: int, n_max: int) -> Tensor:
    """The order in which each client passes its samples in each epoch: [K, E, n_max]; padding stands last.

    least, n_max: the smallest and the largest of the sizes.
    """
    epoch_keys = fold_in(keys[:, None], torch.arange(epochs, device=keys.device)[None])
    counter = torch.arange(n_max, device=keys.device)
    drawn = bits(epoch_keys[..., None], counter)
    if least < n_max:
        drawn = torch.where(counter < sizes[:, None, None], drawn, _LAST)
    return torch.argsort(drawn, dim=-1, stable=True)


class Batches:
    """The minibatches of K clients, each for its own number of steps; later rows are valid samples that do not count.

    keys, offsets, sizes, steps: [K]; index: sample ids of all clients, client k's begin at offsets[k]. Orders are drawn
    for runs of clients of similar size and work, so that a large one does not make all of them large.
    """

    def __init__(
        self,
        keys: Tensor,
        index: Tensor,
        offsets: Tensor,
        sizes: Tensor,
        steps: Tensor,
        batch_size: int,
        counts: Counts | None = None,
    ) -> None:
        samples, wanted = counts or Counts(sizes.tolist(), steps.tolist())
        self.batch_size, self.sizes = batch_size, sizes
        self.whole = all(n % batch_size == 0 for n in samples)
        per_epoch = [-(-n // batch_size) for n in samples]
        passes = [max(1, -(-count // each)) for count, each in zip(wanted, per_epoch, strict=True)]
        runs = _runs(samples, passes, keys.device.type == "cuda")
        of_each = [run for run in runs for _ in range(run.where.start, run.where.stop)]
        widths = [run.width for run in of_each]
        begins = [0, *accumulate(run.epochs * run.width for run in of_each)][:-1]
        table = torch.tensor([per_epoch, passes, widths, begins]).to(keys.device)
        # [K]: steps per epoch; epochs; samples per epoch, padded; where a client's orders begin in the flat table
        self.per_epoch, self.passes, self.width, self.begin = table

        def rows(where: slice, epochs: int, width: int) -> Tensor:
            order = orders(keys[where], sizes[where], epochs, min(samples[where]), width)
            last = sizes[where, None, None] - 1  # stands in for padding
            return index[offsets[where, None, None] + order.minimum(last)].flatten()

        self.order = torch.cat([rows(*run) for run in runs])

    def table(self, begin: int, end: int, width: int) -> Table:
        """The steps begin..end-1 of the first ``width`` clients."""
        device = self.order.device
        step = torch.arange(begin, end, device=device)[:, None]  # [S, 1]
        per_epoch, sizes = self.per_epoch[:width], self.sizes[:width, None]
        epoch = (step // per_epoch).minimum(self.passes[:width] - 1)  # [S, K]
        within = (step % per_epoch * self.batch_size)[..., None] + torch.arange(self.batch_size, device=device)
        first = (self.begin[:width] + epoch * self.width[:width])[..., None]
        if self.whole:
            return Table(self.order[first + within], None)
        inside = within < sizes
        return Table(self.order[first + torch.where(inside, within, 0)], inside.to(torch.float32))


class _Run(NamedTuple):
    """Neighbours whose orders are drawn at once, for as many epochs and samples as any of them has."""

    where: slice
    epochs: int
    width: int


def _runs(samples: list[int], passes: list[int], together: bool) -> list[_Run]:
    """All clients at once, or as many neighbours at a time as have no more padding than samples."""
    edges = [0, *([] if together else _cuts(samples, passes)), len(samples)]
    return [_Run(slice(begin, end), max(passes[begin:end]), max(samples[begin:end])) for begin, end in pairwise(edges)]


def _cuts(samples: list[int], passes: list[int]) -> list[int]:
    """Where the padding of neighbours would become more than their samples."""
    cuts, begin, real, widest, most = [], 0, 0, 0, 0
    for i, (n, count) in enumerate(zip(samples, passes, strict=True)):
        widest, most, real = max(widest, n), max(most, count), real + n * count
        if i > begin and widest * most * (i + 1 - begin) > 2 * real + 4096:
            cuts.append(i)
            begin, real, widest, most = i, n * count, n, count
    return cuts


def table(keys: Tensor, index: Tensor, offsets: Tensor, sizes: Tensor, steps: Tensor, batch_size: int) -> Table:
    """All minibatches of K clients."""
    return Batches(keys, index, offsets, sizes, steps, batch_size).table(0, max(1, int(steps.max())), len(keys))


def ladder(k: int, ratio: float = 1.125) -> list[int]:
    """Batch widths to which a shrinking set of clients is rounded up: 1, 2, ..., then by ``ratio``, up to k."""
    widths = [1]
    while widths[-1] < k:
        widths.append(min(k, max(widths[-1] + 1, int(widths[-1] * ratio))))
    return widths
