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
    drawn = torch.where(counter < sizes[:, None, None], drawn, _LAST)
    return torch.argsort(drawn, dim=-1, stable=True)


def table(keys: Tensor, index: Tensor, offsets: Tensor, sizes: Tensor, steps: Tensor, batch_size: int) -> Table:
    """The minibatches of K clients, each for its own number of steps; later rows are valid samples that do not count.

    keys, offsets, sizes, steps: [K]; index: sample ids of all clients, client k's begin at offsets[k].
    """
    device = keys.device
    per_epoch = (sizes + batch_size - 1) // batch_size
    epochs = max(1, int(((steps + per_epoch - 1) // per_epoch).max()))
    order = orders(keys, sizes, epochs)
    step = torch.arange(max(1, int(steps.max())), device=device)[:, None]  # [S, 1]
    epoch = (step // per_epoch).clamp_max(epochs - 1)  # [S, K]
    within = (step % per_epoch)[..., None] * batch_size + torch.arange(batch_size, device=device)  # [S, K, B]
    inside = within < sizes[:, None]
    place = torch.where(inside, within, 0)
    client = torch.arange(len(keys), device=device)[:, None]
    rows = index[offsets[:, None] + order[client, epoch[..., None], place]]
    whole = bool((sizes % batch_size == 0).all())
    return Table(rows, None if whole else inside.to(torch.float32))


def ladder(k: int, ratio: float = 1.125) -> list[int]:
    """Batch widths to which a shrinking set of clients is rounded up: 1, 2, ..., then by ``ratio``, up to k."""
    widths = [1]
    while widths[-1] < k:
        widths.append(min(k, max(widths[-1] + 1, int(widths[-1] * ratio))))
    return widths
