"""Many clients as one computation: client functions vmapped over a leading axis, on a GPU replayed as CUDA graphs.

Clients are sorted by the steps they train; a step runs on the clients that still train, rounded up to a few widths, so
little is computed in vain. Clients that train the same layers run together, and no gradient is computed below the first
layer they train.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from motley.client.optimizer import SGD
from motley.client.trainer import Outcome, Training, finish, trainable
from motley.client.trainer import Task as ClientTask
from motley.client.trainer import begin as begin_client
from motley.core.kernels import available, without_kernels
from motley.core.types import Client, Tree
from motley.data.federated import FederatedData
from motley.run.executors import draws, fetch, fused, linear
from motley.run.executors.assemble import assemble
from motley.run.executors.base import Job
from motley.run.executors.buffers import Buffers
from motley.run.executors.checked import Checked
from motley.run.executors.group import Drawn, Group, Samples, Waste
from motley.run.executors.loop import one_thread
from motley.run.executors.measure import measured
from motley.run.executors.memory import keep_memory
from motley.run.executors.outcomes import outcomes, together
from motley.run.executors.place import moved, pick
from motley.run.executors.steps import Inputs, augmented, client_axes, first, make_step, taken
from motley.run.executors.tables import Batches, Counts, Table, ladder, same
from motley.run.executors.trace import Cache, Captured, Traced, shape_key, width_key
from motley.run.executors.trust import trusted

CACHE_BYTES = 1 << 22  # parameters of clients that run together on a CPU, so that they stay in its cache
GPU_BYTES = 1 << 28  # parameters of minibatches that are measured together on a GPU,
GPU_SAMPLES = 1 << 12  # and their samples: an LSTM keeps a megabyte for each
BLOCK_BYTES = 1 << 23  # samples fetched at once on a CPU


class Batched:
    """Trains jobs together. Equal to the loop executor within float tolerance."""

    name = "batched"

    def __init__(
        self, training: Training, data: FederatedData, device: str = "auto", widest: int = 4096, compiled: bool = False
    ) -> None:
        self.training = training
        self.device = torch.device(pick(device))
        self.cuda = self.device.type == "cuda"
        if not self.cuda:
            keep_memory()
        self.in_place = True  # parameters and optimizer state are updated where they lie
        self.any_width = not self.cuda  # one trace for all widths
        self.data = moved(data, self.device)
        self.partition = data.partition
        self.apart = self.cuda  # rounds bring the ids of their clients' samples along
        self.widest = widest if self.cuda else max(8, min(widest, CACHE_BYTES // (4 * training.net.size)))
        self.compiled = compiled
        self._fused = Checked("training linear models")
        self._draws = Checked("drawing minibatches", available())
        self.waste = Waste(0, 0)
        self._traces: Cache[Traced] = Cache(128)
        self._buffers: Cache[Buffers] = Cache(8)
        self._reads_data: dict[str, bool] = {}
        self._graph_pool = torch.cuda.graph_pool_handle() if self.cuda else None
        if self.cuda:
            fast = training.precision != "float32"
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = fast
        self.kernels = not self.cuda or trusted(training.net, self.data.dataset, training.batch_size, self.device)

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        with nullcontext() if self.kernels else without_kernels(), nullcontext() if self.cuda else one_thread():
            return self._run(jobs)

    def _run(self, jobs: Sequence[Job]) -> list[Outcome]:
        found: dict[int, Outcome] = {}
        for places in self._group(jobs):
            begin = 0
            while begin < len(places):
                some = places[begin : begin + self.widest]
                made = self._attempt([jobs[i] for i in some])
                if made is None:
                    self.widest = len(some) // 2
                    continue
                found.update(zip(some, made, strict=True))
                begin += len(some)
        return together([found[i] for i in range(len(jobs))])

    def _attempt(self, jobs: list[Job]) -> list[Outcome] | None:
        """What jobs give, or None where there is not the memory for several; one alone has a second try.

        What was kept between rounds is given back after a failure, beside the exception, whose frames hold tensors.
        """
        for tries in (1, 2):
            try:
                return self._run_group(self._assemble(jobs))
            except torch.OutOfMemoryError:
                if len(jobs) == 1 and tries == 2:
                    raise
            self.close()
            torch.cuda.empty_cache()
            if len(jobs) > 1:
                break
        return None

    def close(self) -> None:
        for buffers in self._buffers.items.values():
            buffers.graphs.items.clear()  # they hold the buffers, which hold them
        self._buffers = Cache(8)
        self._traces = Cache(128)

    # ------------------------------------------------------------------ who runs with whom
    def _group(self, jobs: Sequence[Job]) -> list[list[int]]:
        order = sorted(range(len(jobs)), key=lambda i: (-jobs[i].steps, i))
        if not self.training.method.has("trainable"):
            return [order]
        groups: dict[Any, list[int]] = {}
        for i in order:
            groups.setdefault(tuple(trainable(self.training, jobs[i].facts.tensors()).tolist()), []).append(i)
        return list(groups.values())

    def _assemble(self, jobs: list[Job]) -> Group:
        return assemble(self.training, self.partition, jobs, self._width(len(jobs)), self.device, self.apart)

    def _width(self, k: int) -> int:
        """On a GPU the number of clients is rounded up, so that few graphs serve many rounds."""
        if not self.cuda:
            return k
        return next(width for width in ladder(2 * k) if width >= k)

    # ------------------------------------------------------------------ one group, from start to end
    def _run_group(self, group: Group) -> list[Outcome]:
        with torch.no_grad():
            c = self._begin(group)
            c = self._train(group, c)
            c = measured(self.training, self.data, group, c, self._trace, self._measurable(), self.cuda)
            made = self._finish(group, c)
        return outcomes(group, self.training.method.adaptive, *made)

    def _begin(self, group: Group) -> Client:
        """All clients before their first step, stacked (`start`, `down`, `dials` without client axis where shared)."""
        training, k = self.training, len(group.jobs)
        zero = torch.zeros(k, device=self.device)
        start = group.start if not group.shared.start else group.start.expand(k, -1)
        ones = torch.ones(k, training.net.n_layers, device=self.device)
        c = Client(
            start, group.start, ones, group.facts, group.keys, zero, zero,
            group.down, group.own or {}, {}, group.dials, training.net, training.batch_size,
        )  # fmt: skip
        if not training.method.has("begin") and not training.method.has("trainable"):
            return c

        def one(c: Client, rows: Tensor, mask: Tensor) -> tuple[Any, ...]:
            task = ClientTask(c.start, c.facts, c.key, c.down, c.own, c.dials)
            samples = Samples(self.data, rows, c.facts.client, mask)
            done = begin_client(training, task, samples)
            self._reads_data["begin"] = self._reads_data.get("begin", False) or samples.touched
            return done.params, done.trained, done.own, done.notes

        params, trained, own, notes = self._whole("begin", group, c, one)
        return c.with_(params=params, trained=trained, own=own, notes=notes)

    def _measurable(self) -> int:
        """Minibatches that are measured together."""
        most = (GPU_BYTES if self.cuda else CACHE_BYTES) // (4 * self.training.net.size)
        return max(1, min(most, GPU_SAMPLES // self.training.batch_size) if self.cuda else most)

    def _finish(self, group: Group, c: Client) -> tuple[Any, ...]:
        if not self.training.method.has("report") and not self.training.method.has("encode"):
            return c.params - c.start, c.trained, {}, c.own, c.loss

        def one(c: Client, rows: Tensor, mask: Tensor) -> tuple[Any, ...]:
            samples = Samples(self.data, rows, c.facts.client, mask)
            outcome = finish(self.training, c, samples)
            self._reads_data["finish"] = self._reads_data.get("finish", False) or samples.touched
            return tuple(outcome)

        payload, trained, extras, own, loss = self._whole("finish", group, c, one)
        return payload, trained, extras, own, loss

    def _whole(self, stage: str, group: Group, c: Client, one: Callable[..., Any]) -> Any:
        """Runs a function of (client, all its samples) for all clients; samples are fetched only if it reads them."""
        n_max = max(group.samples) if self._reads_data.get(stage, True) else 1
        n_max = next(width for width in ladder(2 * n_max, 1.25) if width >= n_max)
        place = torch.arange(n_max, device=self.device)
        inside = place < group.sizes[:, None]
        rows = group.index[group.offsets[:, None] + torch.where(inside, place, 0)]
        mask = inside.to(torch.float32)
        dims = (client_axes(c, group.shared), 0, 0)
        traced = self._trace((stage, group.shared), vmap(one, in_dims=dims), (c, rows, mask), dims)
        return traced(c, rows, mask)

    def _trace(self, what: tuple[Any, ...], function: Callable[..., Any], args: tuple[Any, ...], axes: Any) -> Traced:
        """A function traced for such arguments; on a CPU one trace serves all widths."""
        if self.any_width:
            key = (*what, width_key(args, axes))
            return self._traces.get(key, lambda: Traced(function, *args, axes=axes, compiled=self.compiled))
        key = (*what, shape_key(args))
        return self._traces.get(key, lambda: Traced(function, *args, compiled=self.compiled))

    # ------------------------------------------------------------------ steps
    def _phases(self, group: Group) -> list[tuple[int, int]]:
        return group.phases(1.125 if self.cuda else 1.06)

    def _train(self, group: Group, c: Client) -> Client:
        k, total = len(group.jobs), max(group.counts)
        self.waste = self.waste.plus(group.waste(self.training.batch_size, self._phases(group)))
        if group.span.first >= group.span.last or total == 0:
            return c
        drawn = (group.keys, group.index, group.offsets, group.sizes, group.steps, self.training.batch_size)
        counts = Counts(group.samples, group.counts)
        if self.cuda:
            return self._train_on_gpu(group, c, drawn, counts)
        batches = Batches(*drawn, counts)
        if linear.fits(self.training, self.data):
            descent = linear.Descent(self.training, self.data, c.params, group.facts.lr, group.steps)
            losses = linear.train(descent, batches, self._phases(group))
            return self._closed(group, c.with_(params=descent.params), losses)
        params = c.params.clone() if self.in_place else c.params
        moving = (params, tree_map(lambda leaf: leaf.contiguous(), self._at_rest(params)))
        parked: list[Tensor] = []
        losses = torch.zeros(total, k, device=self.device)
        s = 0
        for width, until in self._phases(group):
            if width < len(moving[0]):
                parked.append(moving[0][width:])
                moving = tree_map(lambda leaf, w=width: leaf[:w], moving)
            while s < until:
                last = until if not self.training.method.adaptive else group.epoch_end(s, until)
                moving = self._advance(group, c, moving, batches, losses, s, last)
                s = last
                if self.training.method.adaptive:
                    c = self._epoch_ends(group, c, moving[0], losses, s - 1)
        params = torch.cat([moving[0], *reversed(parked)]) if parked else moving[0]
        return self._closed(group, c.with_(params=params), losses)

    def _train_on_gpu(self, group: Group, c: Client, drawn: Drawn, counts: Counts) -> Client:
        k, total = len(group.jobs), max(group.counts)

        def plain_table() -> Table:
            return Batches(*drawn, counts).table(0, total, k)

        batches = self._draws(lambda: draws.table(*drawn, counts), plain_table, same)
        if not fused.fits(self.training, self.data):
            return self._train_captured(group, c, batches, total)

        def at_once() -> Client:
            params = c.params.contiguous().clone()
            losses = fused.train(self.training, self.data, params, group.facts.lr, group.steps, batches)
            return self._closed(group, c.with_(params=params), losses)

        def close(one: Client, other: Client) -> bool:
            moved = (other.params - c.start).abs().max()
            return bool((one.params - other.params).abs().max() <= 0.02 * moved + 1e-6)

        return self._fused(at_once, lambda: self._train_captured(group, c, batches, total), close)

    def _at_rest(self, params: Tensor) -> Tree:
        """The optimizer's state before the first step, stacked."""
        init = self.training.optimizer.init
        return init(params) if isinstance(self.training.optimizer, SGD) else vmap(init)(params)

    def _advance(
        self, group: Group, c: Client, moving: tuple[Tensor, Tree], batches: Batches, losses: Tensor, s: int, last: int
    ) -> tuple[Tensor, Tree]:
        """Steps s to last-1 of the clients that move; samples are fetched for as many steps at once as fit a block."""
        width = len(moving[0])
        here = first(c.with_(params=moving[0]), width, group.shared)
        counts = (group.steps[:width], group.per_epoch[:width])
        leaves, spec = tree_flatten(moving)
        fixed, _ = tree_flatten(here)
        drawn = batches.table(s, last, width)
        numbers = torch.arange(s, last, device=self.device)[:, None]
        block = max(1, BLOCK_BYTES // (width * self.training.batch_size * self.data.dataset.x[0].numel() * 4))
        seen: list[Tensor] = []
        for begin in range(0, last - s, block):
            some = slice(begin, begin + block)
            mask = None if drawn.mask is None else drawn.mask[some]
            inputs = self._inputs(here, Table(drawn.rows[some], mask), numbers[some], *counts)
            inputs = augmented(self.training, inputs, here.key, numbers[some])
            columns = [[None] * len(inputs.x) if column is None else column.unbind() for column in inputs]
            if group.step is None or not self.any_width:
                group.step = self._step(group, (moving, inputs.first(), here))
            for row in zip(*columns, strict=True):
                *leaves, loss = group.step.flat(*leaves, *row, *fixed)
                seen.append(loss)
        losses[s:last, :width] = torch.stack(seen)
        made: tuple[Tensor, Tree] = tree_unflatten(leaves, spec)
        return made

    def _inputs(self, c: Client, drawn: Table, numbers: Tensor, steps: Tensor, per_epoch: Tensor) -> Inputs:
        """What the steps ``numbers`` [..., 1] of stacked clients take; ``drawn`` has the same leading shape."""
        rows, mask = drawn
        owner = c.facts.client[:, None].expand(rows.shape)
        x, y = self.data.gather(rows.reshape(-1), owner.reshape(-1))
        return Inputs(
            x=x.view(*rows.shape, *x.shape[1:]),
            y=y.view(rows.shape),
            mask=mask,
            share=None if mask is None else mask / mask.sum(-1, keepdim=True).clamp_min(1.0),
            rate=(c.facts.lr * (numbers < steps)).unsqueeze(-1),
            epoch=(numbers // per_epoch).to(torch.float32),
        )

    def _step(self, group: Group, args: tuple[Any, ...]) -> Traced:
        """The traced step of a group for (moving, inputs, clients)."""
        what = (group.span, group.masked, group.shared)
        axes = (0, args[1].axes, client_axes(args[2], group.shared))
        return self._trace(("step", *what), make_step(self.training, *what, self.in_place), args, axes)

    def _step_from_rows(self, group: Group, args: tuple[Any, ...]) -> Traced:
        """As `_step`, with the fetching of samples: for (moving, rows and mask, step number, clients, counts)."""
        what = (group.span, group.masked, group.shared)
        step = make_step(self.training, *what, self.in_place)

        def whole(moving: Any, drawn: Table, number: Tensor, c: Client, counts: tuple[Tensor, Tensor]) -> Any:
            if fetch.fits(self.data):
                inputs = fetch.inputs(self.training, self.data, c, drawn, number, *counts)
            else:
                inputs = augmented(self.training, self._inputs(c, drawn, number, *counts), c.key, number)
            return step(moving, inputs, c)

        axes = (0, Table(0, None if args[1].mask is None else 0), None, client_axes(args[3], group.shared), 0)  # type: ignore[arg-type]
        return self._trace(("rows", *what), whole, args, axes)

    def _epoch_ends(self, group: Group, c: Client, params: Tensor, losses: Tensor, s: int) -> Client:
        """Runs the parts' `epoch` hooks on the clients whose epoch ended with step s; params change where they lie."""
        who = group.ended(s, len(params))
        if not who:
            return c
        rows = torch.tensor(who, device=self.device)
        per_epoch = group.per_epoch[rows]
        done = torch.full_like(per_epoch, s + 1)
        here = taken(c.with_(params=params), lambda leaf: leaf[rows], group.shared).with_(
            epoch=(done // per_epoch).to(torch.float32),
            loss=_window_mean(losses[: s + 1, rows], per_epoch, done),
        )

        def one(c: Client) -> tuple[Any, ...]:
            for _, hook in self.training.method.hooks("epoch"):
                c = hook(c)
            return c.params, c.trained, c.own, c.notes

        dims = (client_axes(here, group.shared),)
        hooks = self._trace(("epoch", group.shared), vmap(one, in_dims=dims), (here,), dims)
        moved, trained, own, notes = hooks(here)
        params.index_copy_(0, rows, moved)

        def put(old: Tensor, new: Tensor) -> Tensor:
            return old.index_copy(0, rows, new)

        blank = tree_map(lambda new: new.new_zeros(len(group.jobs), *new.shape[1:]), notes)
        return c.with_(
            trained=put(c.trained, trained),
            own=tree_map(put, c.own, own),
            notes=tree_map(put, {**blank, **c.notes}, notes),
        )

    def _closed(self, group: Group, c: Client, losses: Tensor) -> Client:
        """The clients after their last step: their loss is the mean over the last epoch, whole or begun."""
        left = group.steps % group.per_epoch
        window = torch.where(left > 0, left, group.per_epoch)
        epoch = (group.steps // group.per_epoch).to(torch.float32)
        return c.with_(loss=_window_mean(losses, window, group.steps), epoch=epoch)

    # ------------------------------------------------------------------ the same steps as CUDA graphs
    def _train_captured(self, group: Group, c: Client, batches: Table, total: int) -> Client:
        capacity = (1 << (total - 1).bit_length()) + 4  # capturing runs a step a few times
        state = self._at_rest(c.params)
        content = (c, state, batches, group.steps, group.per_epoch)
        padded = batches.mask is not None
        key = (group.span, group.masked, group.shared, capacity, padded, shape_key((content[0], state)))
        buffers = self._buffers.get(key, lambda: Buffers(content, capacity))
        buffers.load(content)
        s = 0
        for width, until in self._phases(group):
            graph = buffers.graphs.get(width, lambda w=width: self._capture(group, buffers, w))  # type: ignore[misc]
            while s < until:
                last = until if not self.training.method.adaptive else group.epoch_end(s, until)
                for _ in range(s, last):
                    graph()
                s = last
                if self.training.method.adaptive:
                    moving = buffers.c.params[:width]
                    buffers.take(self._epoch_ends(group, buffers.c, moving, buffers.losses, s - 1))
        return self._closed(group, buffers.c, buffers.losses[:total])

    def _capture(self, group: Group, buffers: Buffers, width: int) -> Captured:
        used: list[Traced] = []

        def step() -> None:
            rows = buffers.rows.index_select(0, buffers.s)[0, :width]
            mask = None if buffers.mask is None else buffers.mask.index_select(0, buffers.s)[0, :width]
            here = first(buffers.c, width, group.shared)
            moving = (here.params, tree_map(lambda leaf: leaf[:width], buffers.state))
            counts = (buffers.steps[:width], buffers.per_epoch[:width])
            args = (moving, Table(rows, mask), buffers.s, here, counts)
            traced = self._step_from_rows(group, args)
            used.append(traced)  # the graph reads its constants
            _, _, loss = traced(*args)
            fetch.record_(buffers.losses, buffers.s, loss)

        return Captured(step, buffers, buffers.snapshot, self._graph_pool)


def _window_mean(losses: Tensor, window: Tensor, end: Tensor) -> Tensor:
    """Mean of losses [S, K] over the ``window`` steps before step ``end``: [K]."""
    s = torch.arange(len(losses), device=losses.device)[:, None]
    inside = (s < end) & (s >= end - window)
    return torch.where(inside, losses, 0.0).sum(0) / inside.sum(0).clamp_min(1)
