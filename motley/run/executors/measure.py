"""What parts measure on every minibatch after training, for many clients at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from motley.client.trainer import Training
from motley.core.types import Batch, Client, Tree
from motley.data.federated import FederatedData
from motley.run.executors.group import Group
from motley.run.executors.steps import client_axes, first, taken
from motley.run.executors.tables import ladder
from motley.run.executors.trace import Traced

Trace = Callable[[tuple[Any, ...], Callable[..., Any], tuple[Any, ...], Any], Traced]


def measured(training: Training, data: FederatedData, index: Tensor, group: Group, c: Client, trace: Trace) -> Client:
    """`motley.client.trainer.measured` of stacked clients: as they run out of minibatches, the batch narrows."""
    hooks = training.method.hooks("measure")
    if not hooks:
        return c
    k, size, device = len(group.jobs), training.batch_size, c.params.device
    order = sorted(range(k), key=lambda i: -group.epoch_steps[i])
    place = torch.tensor(order, device=device)
    lengths = [group.epoch_steps[i] for i in order]
    there = taken(c, lambda leaf: leaf[place], group.shared)
    counts, sizes, offsets = group.per_epoch[place], group.sizes[place, None], group.offsets[place, None]
    within = torch.arange(size, device=device)
    widths = ladder(k)

    def one(c: Client, batch: Batch) -> list[Tree]:
        return [hook(c, batch) for _, hook in hooks]

    totals: Any = None
    for s in range(lengths[0]):
        left = sum(length > s for length in lengths)
        width = next(width for width in widths if width >= left)
        here = first(there, width, group.shared)
        inside = s * size + within < sizes[:width]
        rows = index[offsets[:width] + torch.where(inside, s * size + within, 0)]
        x, y = data.gather(rows.reshape(-1), here.facts.client[:, None].expand(rows.shape).reshape(-1))
        batch = Batch(x.view(*rows.shape, *x.shape[1:]), y.view(rows.shape), inside.to(torch.float32))
        axes = (client_axes(here, group.shared), Batch(0, 0, 0))  # type: ignore[arg-type]
        values = trace(("measure", group.shared), vmap(one, in_dims=axes), (here, batch), axes)(here, batch)
        if totals is None:
            totals = tree_map(lambda leaf: leaf.new_zeros((k, *leaf.shape[1:])), values)
        tree_map(lambda total, value, w=width, s=s: _add(total[:w], value, s < counts[:w]), totals, values)
    back = torch.argsort(place)
    means = tree_map(lambda total: (total / _beside(counts, total))[back], totals)
    return c.with_(notes={**c.notes, **{name: mean for (name, _), mean in zip(hooks, means, strict=True)}})


def _add(total: Tensor, value: Tensor, counts: Tensor) -> None:
    total.add_(torch.where(_beside(counts, value), value, 0.0))


def _beside(rows: Tensor, leaf: Tensor) -> Tensor:
    """One number per row, shaped to go with all of a leaf's."""
    return rows.view(-1, *([1] * (leaf.dim() - 1)))
