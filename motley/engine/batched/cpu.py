"""Groups on the cores of a CPU: one trace serves all widths, samples are fetched in blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from motley.client.site import Site
from motley.core.types import Client, Tree
from motley.engine.batched import closed_form
from motley.engine.batched.assemble import Assembler
from motley.engine.batched.group import Group, Waste
from motley.engine.batched.lane import at_rest, closed, epoch_ends, inputs_of
from motley.engine.batched.minibatches import Batches, Table
from motley.engine.batched.steps import augmented, client_axes, first, make_step
from motley.engine.batched.trace import Cache, Traced, width_key
from motley.engine.device import moved
from motley.engine.loop import one_thread
from motley.engine.memory import keep_memory

CACHE_BYTES = 1 << 22  # parameters of clients that run together, so that they stay in the processor's cache
BLOCK_BYTES = 1 << 23  # samples fetched at once
RATIO = 1.06  # by which the batch narrows as clients finish

Moving = tuple[Tensor, Tree]


class CpuLane:
    """Many clients as one computation in this process, with one thread."""

    def __init__(self, site: Site) -> None:
        keep_memory()
        self.training = site.training
        self.device = torch.device("cpu")
        self.data = moved(site.data, self.device)
        self.assemble = Assembler(site.training, site.data.partition, self.device, apart=False)
        self.together = max(1, CACHE_BYTES // (4 * site.training.net.size))
        self.widest = max(8, self.together)
        self.waste = Waste(0, 0)
        self._traces: Cache[Traced] = Cache(128)

    def scope(self) -> AbstractContextManager[object]:
        return one_thread()

    def width(self, k: int) -> int:
        return k

    def clear(self) -> None:
        self._traces = Cache(128)

    def trace(self, what: tuple[Any, ...], function: Callable[..., Any], args: tuple[Any, ...], axes: Any) -> Traced:
        return self._traces.get((*what, width_key(args, axes)), lambda: Traced(function, *args, axes=axes))

    def train(self, group: Group, c: Client) -> Client:
        phases = group.phases(RATIO)
        self.waste = self.waste.plus(group.waste(self.training.batch_size, phases))
        batches = Batches(*group.drawn, group.on_host)
        if closed_form.fits(self.training, self.data):
            descent = closed_form.Descent(self.training, self.data, c.params, group.facts.lr, group.drawn.steps)
            losses = closed_form.train(descent, batches, phases)
            return closed(group, c.with_(params=descent.params), losses)
        return self._step_by_step(group, c, batches, phases)

    def _step_by_step(self, group: Group, c: Client, batches: Batches, phases: list[tuple[int, int]]) -> Client:
        params = c.params.clone()
        moving: Moving = (params, tree_map(lambda leaf: leaf.contiguous(), at_rest(self.training, params)))
        parked: list[Tensor] = []
        losses = torch.zeros(max(group.counts), group.width)
        changing = self.training.method.has("epoch")
        s = 0
        for width, until in phases:
            if width < len(moving[0]):
                parked.append(moving[0][width:])
                moving = tree_map(lambda leaf, w=width: leaf[:w], moving)
            while s < until:
                last = group.epoch_end(s, until) if changing else until
                moving = self._advance(group, c, moving, batches, losses, s, last)
                s = last
                if changing:
                    c = epoch_ends(self, self.training, group, c.with_(params=moving[0]), losses, s - 1)
        params = torch.cat([moving[0], *reversed(parked)]) if parked else moving[0]
        return closed(group, c.with_(params=params), losses)

    def _advance(
        self, group: Group, c: Client, moving: Moving, batches: Batches, losses: Tensor, s: int, last: int
    ) -> Moving:
        """Steps s to last-1 of the clients that move; samples are fetched for as many steps at once as fit a block."""
        width = len(moving[0])
        here = first(c.with_(params=moving[0]), width, group.shared)
        counts = (group.drawn.steps[:width], group.per_epoch[:width])
        leaves, spec = tree_flatten(moving)
        fixed, _ = tree_flatten(here)
        drawn = batches.table(s, last, width)
        numbers = torch.arange(s, last)[:, None]
        block = max(1, BLOCK_BYTES // (width * self.training.batch_size * self.data.dataset.x[0].numel() * 4))
        seen: list[Tensor] = []
        for begin in range(0, last - s, block):
            some = slice(begin, begin + block)
            mask = None if drawn.mask is None else drawn.mask[some]
            inputs = inputs_of(self.data, here, Table(drawn.rows[some], mask), numbers[some], *counts)
            inputs = augmented(self.training, inputs, here.key, numbers[some])
            columns = [[None] * len(inputs.x) if column is None else column.unbind() for column in inputs]
            if group.step is None:
                group.step = self._step(group, (moving, inputs.first(), here))
            for row in zip(*columns, strict=True):
                *leaves, loss = group.step.flat(*leaves, *row, *fixed)
                seen.append(loss)
        losses[s:last, :width] = torch.stack(seen)
        made: Moving = tree_unflatten(leaves, spec)
        return made

    def _step(self, group: Group, args: tuple[Any, ...]) -> Traced:
        """The traced step of a group for (moving, inputs, clients)."""
        what = (group.span, group.masked, group.shared)
        axes = (0, args[1].axes, client_axes(args[2], group.shared))
        return self.trace(("step", *what), make_step(self.training, *what), args, axes)
