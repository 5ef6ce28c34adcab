"""What parts measure on every minibatch after training, for many clients at once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch.func import vmap
from torch.utils._pytree import tree_map

from motley.client.trainer import Training
from motley.core.types import Batch, Client, Tree
from motley.engine.batched.group import Group
from motley.engine.batched.lane import Lane
from motley.engine.batched.steps import client_axes, taken


def measured(training: Training, lane: Lane, group: Group, c: Client) -> Client:
    """`motley.client.trainer.measured` of stacked clients: minibatches, of whichever client, are taken side by side.

    As many at once as the lane takes, since each has a model of its own; their number is rounded as clients are.
    """
    hooks = training.method.hooks("measure")
    if not hooks:
        return c
    size, device, drawn = training.batch_size, c.params.device, group.drawn
    within = torch.arange(size, device=device)
    owners = np.repeat(np.arange(group.width), group.epoch_steps)
    numbers = np.concatenate([np.arange(n) for n in group.epoch_steps])

    def one(c: Client, batch: Batch) -> list[Tree]:
        return [hook(c, c.mine(name), batch) for name, hook in hooks]

    totals: Any = None
    for begin in range(0, len(owners), lane.together):
        n = min(lane.together, len(owners) - begin)
        places = torch.from_numpy(np.minimum(np.arange(begin, begin + lane.width(n)), begin + n - 1))
        who, number = (torch.from_numpy(part)[places].to(device) for part in (owners, numbers))
        at = (number * size)[:, None] + within
        inside = at < drawn.sizes[who, None]
        rows = drawn.pool[drawn.offsets[who, None] + torch.where(inside, at, 0)]
        here = taken(c, partial(torch.index_select, dim=0, index=who), group.shared)
        x, y = lane.data.gather(rows.reshape(-1), here.facts.client[:, None].expand(rows.shape).reshape(-1))
        batch = Batch(x.view(*rows.shape, *x.shape[1:]), y.view(*rows.shape, *y.shape[1:]), inside.to(torch.float32))
        axes = (client_axes(here, group.shared), Batch(0, 0, 0))  # type: ignore[arg-type]
        values = lane.trace(("measure", group.shared), vmap(one, in_dims=axes), (here, batch), axes)(here, batch)
        if totals is None:
            totals = tree_map(lambda leaf: leaf.new_zeros((group.width, *leaf.shape[1:])), values)
        tree_map(lambda total, value, who=who, n=n: total.index_add_(0, who[:n], value[:n]), totals, values)
    means = tree_map(lambda total: total / group.per_epoch.view(-1, *([1] * (total.dim() - 1))), totals)
    return c.with_(notes={**c.notes, **{name: mean for (name, _), mean in zip(hooks, means, strict=True)}})
