"""What parts measure on every minibatch after training, for many clients at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.func import vmap
from torch.utils._pytree import tree_map

from motley.client.trainer import Training
from motley.core.types import Batch, Client, Tree
from motley.data.federated import FederatedData
from motley.run.executors.group import Group
from motley.run.executors.steps import client_axes, taken
from motley.run.executors.tables import ladder
from motley.run.executors.trace import Traced

Trace = Callable[[tuple[Any, ...], Callable[..., Any], tuple[Any, ...], Any], Traced]


def measured(
    training: Training, data: FederatedData, group: Group, c: Client, trace: Trace, most: int, cuda: bool
) -> Client:
    """`motley.client.trainer.measured` of stacked clients: minibatches, of whichever client, are taken side by side.

    ``most`` of them at once, since each has a model of its own; on a GPU their number is rounded up, so that few traces
    serve.
    """
    hooks = training.method.hooks("measure")
    if not hooks:
        return c
    k, size, device = len(group.jobs), training.batch_size, c.params.device
    within = torch.arange(size, device=device)
    owners = np.repeat(np.arange(k), group.epoch_steps)
    numbers = np.concatenate([np.arange(n) for n in group.epoch_steps])

    def one(c: Client, batch: Batch) -> list[Tree]:
        return [hook(c, batch) for _, hook in hooks]

    totals: Any = None
    for begin in range(0, len(owners), most):
        n = min(most, len(owners) - begin)
        width = next(width for width in ladder(2 * n) if width >= n) if cuda else n
        places = torch.from_numpy(np.minimum(np.arange(begin, begin + width), begin + n - 1))
        who, number = (torch.from_numpy(part)[places].to(device) for part in (owners, numbers))
        at = (number * size)[:, None] + within
        inside = at < group.sizes[who, None]
        rows = group.index[group.offsets[who, None] + torch.where(inside, at, 0)]
        here = taken(c, partial(torch.index_select, dim=0, index=who), group.shared)
        x, y = data.gather(rows.reshape(-1), here.facts.client[:, None].expand(rows.shape).reshape(-1))
        batch = Batch(x.view(*rows.shape, *x.shape[1:]), y.view(rows.shape), inside.to(torch.float32))
        axes = (client_axes(here, group.shared), Batch(0, 0, 0))  # type: ignore[arg-type]
        values = trace(("measure", group.shared), vmap(one, in_dims=axes), (here, batch), axes)(here, batch)
        if totals is None:
            totals = tree_map(lambda leaf: leaf.new_zeros((k, *leaf.shape[1:])), values)
        tree_map(lambda total, value, who=who, n=n: total.index_add_(0, who[:n], value[:n]), totals, values)
    means = tree_map(lambda total: total / group.per_epoch.view(-1, *([1] * (total.dim() - 1))), totals)
    return c.with_(notes={**c.notes, **{name: mean for (name, _), mean in zip(hooks, means, strict=True)}})
