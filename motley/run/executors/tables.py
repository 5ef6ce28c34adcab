"""Minibatch tables: which sample each of K clients sees in each step, computed for all of them at once.

The draws are those of `motley.client.trainer.minibatches`, so a batched run sees exactly the batches of a loop run.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from motley.core.keys import bits, fold_in

_LAST = torch.iinfo(torch.int64).max


class Table(NamedTuple):
    """Rows of the training set and which of them are padding."""

    rows: Tensor  # [S, K, B] int64
    mask: Tensor | None  # [S, K, B] float32, None where nothing is padded


def orders(keys: Tensor, sizes: Tensor, epochs: int) -> Tensor:
    """The order in which each client passes its samples in each epoch: [K, E, n_max]; padding stands last."""
    n_max = int(sizes.max())
    epoch_keys = fold_in(keys[:, None], torch.arange(epochs, device=keys.device)[None])
    counter = torch.arange(n_max, device=keys.device)
    drawn = bits(epoch_keys[..., None], counter)
    if int(sizes.min()) < n_max:
        drawn = torch.where(counter < sizes[:, None, None], drawn, _LAST)
    return torch.argsort(drawn, dim=-1, stable=True)


class Batches:
    """The minibatches of K clients, each for its own number of steps; later rows are valid samples that do not count.

    keys, offsets, sizes, steps: [K]; index: sample ids of all clients, client k's begin at offsets[k]. Orders are drawn
    for runs of clients of similar size and work, so that a large one does not make all of them large.
    """

    def __init__(
        self, keys: Tensor, index: Tensor, offsets: Tensor, sizes: Tensor, steps: Tensor, batch_size: int
    ) -> None:
        self.batch_size, self.sizes = batch_size, sizes
        self.per_epoch = (sizes + batch_size - 1) // batch_size
        self.whole = bool((sizes % batch_size == 0).all())
        epochs = ((steps + self.per_epoch - 1) // self.per_epoch).clamp_min(1)
        samples, passes = sizes.tolist(), epochs.tolist()
        pieces = [
            (slice(begin, end), max(passes[begin:end]), max(samples[begin:end]))
            for begin, end in _runs(samples, passes, keys.device.type == "cuda")
        ]
        self.passes = epochs
        counts = [where.stop - where.start for where, _, _ in pieces]
        self.width = _spread([width for _, _, width in pieces], counts, keys.device)  # [K] samples per epoch, padded
        lengths = _spread([count * width for _, count, width in pieces], counts, keys.device)
        self.begin = lengths.cumsum(0) - lengths  # [K] where a client's orders begin in the flat table

        def rows(where: slice, count: int) -> Tensor:
            order = orders(keys[where], sizes[where], count)
            last = sizes[where, None, None] - 1  # stands in for padding
            return index[offsets[where, None, None] + order.minimum(last)].flatten()

        self.order = torch.cat([rows(where, count) for where, count, _ in pieces])

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


def _spread(values: list[int], counts: list[int], device: torch.device) -> Tensor:
    return torch.tensor(values).repeat_interleave(torch.tensor(counts)).to(device)


def _runs(samples: list[int], passes: list[int], together: bool) -> list[tuple[int, int]]:
    """Neighbours whose orders are drawn at once: while the padding is no more than the samples, or all of them."""
    if together:
        return [(0, len(samples))]
    runs, begin, real, widest, most = [], 0, 0, 0, 0
    for i, (n, count) in enumerate(zip(samples, passes, strict=True)):
        widest, most, real = max(widest, n), max(most, count), real + n * count
        if i > begin and widest * most * (i + 1 - begin) > 2 * real + 4096:
            runs.append((begin, i))
            begin, real, widest, most = i, n * count, n, count
    return [*runs, (begin, len(samples))]


def table(keys: Tensor, index: Tensor, offsets: Tensor, sizes: Tensor, steps: Tensor, batch_size: int) -> Table:
    """All minibatches of K clients."""
    return Batches(keys, index, offsets, sizes, steps, batch_size).table(0, max(1, int(steps.max())), len(keys))


def ladder(k: int, ratio: float = 1.125) -> list[int]:
    """Batch widths to which a shrinking set of clients is rounded up: 1, 2, ..., then by ``ratio``, up to k."""
    widths = [1]
    while widths[-1] < k:
        widths.append(min(k, max(widths[-1] + 1, int(widths[-1] * ratio))))
    return widths
