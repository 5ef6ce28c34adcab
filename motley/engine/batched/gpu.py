"""Groups on a GPU: steps are captured as graphs over fixed memory and replayed; rounds transfer their numbers once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from motley.client.site import Site
from motley.core.acceleration import available, without_kernels
from motley.core.network import Network
from motley.core.types import Client
from motley.data.dataset import Dataset
from motley.engine.batched.assemble import Assembler
from motley.engine.batched.buffers import Buffers
from motley.engine.batched.checked import Checked
from motley.engine.batched.group import Group, Waste
from motley.engine.batched.lane import at_rest, closed, epoch_ends, inputs_of
from motley.engine.batched.minibatches import Batches, Table, ladder, same
from motley.engine.batched.steps import augmented, client_axes, first, make_step
from motley.engine.batched.trace import Cache, Captured, Traced, shape_key
from motley.engine.device import moved, precision
from motley.engine.kernels import descent_op, draws_op, fetch_op
from motley.engine.kernels.kernel_check import trusted

WIDEST = 4096  # clients that run together
MEASURED_BYTES = 1 << 28  # parameters of minibatches that are measured together,
MEASURED_SAMPLES = 1 << 12  # and their samples: an LSTM keeps a megabyte for each
RATIO = 1.125  # by which the batch narrows as clients finish

Check = Callable[[Network, Dataset, int, torch.device], bool]
"""(network, samples, minibatch size, device) -> whether kernels give the gradients that torch gives"""
Capture = Callable[[Callable[[], None], Any, Callable[[], Any], Any], Callable[[], None]]
"""(a function of fixed memory, what it reads, how its effects are undone, a pool of memory) -> how it is run again"""


class GpuLane:
    """Many clients as one computation on a GPU.

    ``capture`` turns a step into something that can be replayed, ``check`` says whether kernels are to be trusted.
    """

    def __init__(self, site: Site, device: str = "cuda", capture: Capture = Captured, check: Check = trusted) -> None:
        self.training = site.training
        self.device = torch.device(device)
        self.data = moved(site.data, self.device)
        self.assemble = Assembler(site.training, site.data.partition, self.device, apart=True)
        self.widest = WIDEST
        most = MEASURED_BYTES // (4 * site.training.net.size)
        self.together = max(1, min(most, MEASURED_SAMPLES // site.training.batch_size))
        self.waste = Waste(0, 0)
        self._capture_as = capture
        self._descent = Checked("training linear models")
        self._draws = Checked("drawing minibatches", self.device.type == "cuda" and available())
        self._traces: Cache[Traced] = Cache(128)
        self._buffers: Cache[Buffers] = Cache(8)
        self._pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        with precision(site.training.precision):
            self._plain = not check(site.training.net, self.data.dataset, site.training.batch_size, self.device)

    def scope(self) -> AbstractContextManager[object]:
        return precision(self.training.precision, without_kernels() if self._plain else nullcontext())

    def width(self, k: int) -> int:
        """The number of clients is rounded up, so that few graphs serve many rounds."""
        return next(width for width in ladder(2 * k) if width >= k)

    def clear(self) -> None:
        for buffers in self._buffers.items.values():
            buffers.graphs.items.clear()  # they hold the buffers, which hold them
        self._buffers = Cache(8)
        self._traces = Cache(128)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def trace(self, what: tuple[Any, ...], function: Callable[..., Any], args: tuple[Any, ...], axes: Any) -> Traced:
        return self._traces.get((*what, shape_key(args)), lambda: Traced(function, *args))

    def train(self, group: Group, c: Client) -> Client:
        phases = group.phases(RATIO)
        self.waste = self.waste.plus(group.waste(self.training.batch_size, phases))
        k, total = group.width, max(group.counts)

        def plain_table() -> Table:
            return Batches(*group.drawn, group.on_host).table(0, total, k)

        batches = self._draws(lambda: draws_op.table(*group.drawn, group.on_host), plain_table, same)
        if not descent_op.fits(self.training, self.data):
            return self._replayed(group, c, batches, phases)

        def at_once() -> Client:
            params = c.params.contiguous().clone()
            losses = descent_op.train(self.training, self.data, params, group.facts.lr, group.drawn.steps, batches)
            return closed(group, c.with_(params=params), losses)

        def close(one: Client, other: Client) -> bool:
            moved_by = (other.params - c.start).abs().max()
            return bool((one.params - other.params).abs().max() <= 0.02 * moved_by + 1e-6)

        return self._descent(at_once, lambda: self._replayed(group, c, batches, phases), close)

    def _replayed(self, group: Group, c: Client, batches: Table, phases: list[tuple[int, int]]) -> Client:
        total = max(group.counts)
        capacity = (1 << (total - 1).bit_length()) + 4  # capturing runs a step a few times
        state = at_rest(self.training, c.params)
        content = (c, state, batches, group.drawn.steps, group.per_epoch)
        padded = batches.mask is not None
        key = (group.span, group.masked, group.shared, capacity, padded, shape_key((c, state)))
        buffers = self._buffers.get(key, lambda: Buffers(content, capacity))
        buffers.load(content)
        changing = self.training.method.has("epoch")
        s = 0
        for width, until in phases:
            graph = buffers.graphs.get(width, lambda w=width: self._capture(group, buffers, w))  # type: ignore[misc]
            while s < until:
                last = group.epoch_end(s, until) if changing else until
                for _ in range(s, last):
                    graph()
                s = last
                if changing:
                    here = buffers.c.with_(params=buffers.c.params[:width])
                    buffers.take(epoch_ends(self, self.training, group, here, buffers.losses, s - 1))
        return closed(group, buffers.c, buffers.losses[:total])

    def _capture(self, group: Group, buffers: Buffers, width: int) -> Callable[[], None]:
        used: list[Traced] = []

        def step() -> None:
            rows = buffers.rows.index_select(0, buffers.s)[0, :width]
            mask = None if buffers.mask is None else buffers.mask.index_select(0, buffers.s)[0, :width]
            here = first(buffers.c, width, group.shared)
            moving = (here.params, tree_map(lambda leaf: leaf[:width], buffers.state))
            counts = (buffers.steps[:width], buffers.per_epoch[:width])
            args = (moving, Table(rows, mask), buffers.s, here, counts)
            traced = self._step(group, args)
            used.append(traced)  # the graph reads its constants
            _, _, loss = traced(*args)
            fetch_op.record_(buffers.losses, buffers.s, loss)

        return self._capture_as(step, buffers, buffers.snapshot, self._pool)

    def _step(self, group: Group, args: tuple[Any, ...]) -> Traced:
        """The traced step with the fetching of samples, for (moving, rows and mask, step number, clients, counts)."""
        what = (group.span, group.masked, group.shared)
        step = make_step(self.training, *what)

        def whole(moving: Any, drawn: Table, number: Tensor, c: Client, counts: tuple[Tensor, Tensor]) -> Any:
            if fetch_op.fits(self.data):
                inputs = fetch_op.inputs(self.training, self.data, c, drawn, number, *counts)
            else:
                inputs = augmented(self.training, inputs_of(self.data, c, drawn, number, *counts), c.key, number)
            return step(moving, inputs, c)

        axes = (0, Table(0, None if args[1].mask is None else 0), None, client_axes(args[3], group.shared), 0)  # type: ignore[arg-type]
        return self.trace(("rows", *what), whole, args, axes)
