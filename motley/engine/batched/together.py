"""Many clients as one computation: client functions vmapped over a leading axis.

Clients are sorted by the steps they train; a step runs on the clients that still train, rounded up to a few widths, so
little is computed in vain. Clients that train the same layers run together, and no gradient is computed below the first
layer they train. Where the work is done is a `Lane`'s to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from motley.client.site import Site
from motley.client.trainer import Trained, begin, finish, sent, trainable
from motley.core.errors import InputError, MotleyError
from motley.core.tasks import Assignment, Failed, Finished
from motley.core.types import Client, Facts, Tree
from motley.engine.batched.cpu import CpuLane
from motley.engine.batched.gpu import GpuLane
from motley.engine.batched.group import Group, Samples, Waste
from motley.engine.batched.lane import Lane
from motley.engine.batched.measure import measured
from motley.engine.batched.minibatches import ladder
from motley.engine.batched.steps import client_axes
from motley.engine.device import pick
from motley.engine.executor import Own
from motley.engine.reports import finished, together, width_of


class Batched:
    """Trains tasks together. Equal to the loop executor within float tolerance."""

    name = "batched"

    def __init__(self, site: Site, device: str = "auto", lane: Lane | None = None) -> None:
        self.site, self.training = site, site.training
        if site.data.dataset.source is not None:
            raise InputError(
                f"Items of '{site.data.dataset.name}' change at random with every reading, which executor=batched "
                "cannot follow; take executor=loop or pool, or hold them as first read: from_torch(data, reread=False)."
            )
        chosen = pick(device)
        self.lane: Lane = lane or (CpuLane(site) if chosen == "cpu" else GpuLane(site, chosen))
        self.device = self.lane.device
        self._reads_data: dict[str, bool] = {}

    @property
    def waste(self) -> Waste:
        """How much of what was computed so far was asked for."""
        return self.lane.waste

    def submit(self, assignments: Sequence[Assignment], own: Own) -> Iterator[Finished | Failed]:
        found: dict[int, Finished] = {}
        failed: list[Failed] = []
        facts = self.site.facts(assignments)
        with self.lane.scope():
            for places in self._groups(facts):
                begin_at = 0
                while begin_at < len(places):
                    some = places[begin_at : begin_at + self.lane.widest]
                    try:
                        made = self._attempt([assignments[i] for i in some], _rows(facts, some), own)
                    except MotleyError as error:
                        failed += [Failed(assignments[i].id, error) for i in some]
                    else:
                        if made is None:
                            self.lane.widest = len(some) // 2
                            continue
                        found.update(zip(some, made, strict=True))
                    begin_at += len(some)
            done = together([found[i] for i in sorted(found)])
        yield from done
        yield from failed

    def close(self) -> None:
        self.lane.clear()

    def _attempt(self, tasks: list[Assignment], facts: Facts, own: Own) -> list[Finished] | None:
        """What tasks give, or None where there is not the memory for several; one alone has a second try.

        What was kept between rounds is given back after a failure, beside the exception, whose frames hold tensors.
        """
        for tries in (1, 2):
            try:
                return self._run(self.lane.assemble(tasks, facts, own, self.lane.width(len(tasks))))
            except torch.OutOfMemoryError:
                if len(tasks) == 1 and tries == 2:
                    raise
            self.lane.clear()
            if len(tasks) > 1:
                break
        return None

    def _groups(self, facts: Facts) -> list[list[int]]:
        """Who runs with whom: those who train the same layers, most steps first."""
        steps = facts.steps.tolist()
        order = sorted(range(len(steps)), key=lambda i: (-steps[i], i))
        if not self.training.method.has("trainable"):
            return [order]
        groups: dict[Any, list[int]] = {}
        for i in order:
            groups.setdefault(tuple(trainable(self.training, facts.row(i)).tolist()), []).append(i)
        return list(groups.values())

    # ------------------------------------------------------------------ one group, from start to end
    def _run(self, group: Group) -> list[Finished]:
        with torch.no_grad():
            c = self._begin(group)
            if group.span.first < group.span.last and max(group.counts) > 0:
                c = self.lane.train(group, c)
            c = measured(self.training, self.lane, group, c)
            stacked = self._finish(group, c)
        return self._reports(group, stacked)

    def _begin(self, group: Group) -> Client:
        """All clients before their first step, stacked (`start`, `down`, `dials` without client axis where shared)."""
        training, k, device = self.training, group.width, self.device
        zero = torch.zeros(k, device=device)
        c = Client(
            params=group.start if not group.shared.start else group.start.expand(k, -1),
            start=group.start,
            trained=torch.ones(k, training.net.n_layers, device=device),
            facts=group.facts,
            key=group.drawn.keys,
            epoch=zero,
            step=torch.zeros(k, dtype=torch.int64, device=device),
            loss=zero,
            down=group.down,
            own=group.own,
            notes={},
            dials=group.dials,
            net=training.net,
            problem=training.problem,
            batch_size=training.batch_size,
        )
        if not training.method.has("begin") and not training.method.has("trainable"):
            return c

        def one(c: Client, data: Samples) -> tuple[Any, ...]:
            done = begin(training, c.with_(params=c.start), data)
            return done.params, done.trained, done.own, done.notes

        params, trained, own, notes = self._on_samples("begin", group, c, one)
        return c.with_(params=params, trained=trained, own=own, notes=notes)

    def _finish(self, group: Group, c: Client) -> Trained:
        """What all clients give, stacked."""
        if not self.training.method.has("report") and not self.training.method.has("encode"):
            return Trained(c.params - c.start, c.trained, {}, c.own, c.loss)
        return Trained(*self._on_samples("finish", group, c, lambda c, data: tuple(finish(self.training, c, data))))

    def _on_samples(self, stage: str, group: Group, c: Client, one: Callable[[Client, Samples], Any]) -> Any:
        """Runs a function of (client, all its samples) for all clients; samples are fetched only if it reads them."""
        n_max = max(group.samples) if self._reads_data.get(stage, True) else 1
        n_max = next(width for width in ladder(2 * n_max, 1.25) if width >= n_max)
        place = torch.arange(n_max, device=self.device)
        inside = place < group.drawn.sizes[:, None]
        rows = group.drawn.pool[group.drawn.offsets[:, None] + torch.where(inside, place, 0)]
        mask = inside.to(torch.float32)

        def on(c: Client, rows: Tensor, mask: Tensor) -> Any:
            samples = Samples(self.lane.data, rows, c.facts.client, mask)
            made = one(c, samples)
            self._reads_data[stage] = self._reads_data.get(stage, False) or samples.touched
            return made

        dims = (client_axes(c, group.shared), 0, 0)
        traced = self.lane.trace((stage, group.shared), vmap(on, in_dims=dims), (c, rows, mask), dims)
        return traced(c, rows, mask)

    def _reports(self, group: Group, stacked: Trained) -> list[Finished]:
        """From stacked results to one per client that trained."""
        real = len(group.tasks)
        changing = self.training.method.has("epoch")
        trained = group.trained * sent(self.training)
        columns = zip(
            _split(stacked.payload, real),
            stacked.trained[:real].cpu().unbind() if changing else [trained] * real,
            _split(stacked.extras, real),
            [_cloned(row) if row else row for row in _split(stacked.own, real)],  # kept for long: no view of the others
            stacked.loss[:real].unbind(),  # left on the device: whoever asks for it waits
            strict=True,
        )
        narrow = self.training.method.has("width")
        widths = [width_of(self.training, group.told.row(k)) if narrow else None for k in range(real)]
        rows = zip(group.tasks, columns, group.samples, group.counts, widths, strict=False)  # without padding
        return [finished(a, Trained(*row), float(n), steps, width) for a, row, n, steps, width in rows]


def _rows(facts: Facts, places: list[int]) -> Facts:
    if places == list(range(len(facts.n))):
        return facts
    chosen = torch.tensor(places)
    return Facts(*(column[chosen] for column in facts))


def _cloned(tree: Tree) -> Tree:
    return tree_map(lambda leaf: leaf.clone(), tree)


def _split(tree: Tree, n: int) -> list[Tree]:
    """The first n rows of a stacked tree, as trees (views)."""
    if isinstance(tree, Tensor):
        return list(tree[:n].unbind())
    leaves, spec = tree_flatten(tree)
    if not leaves:
        return [tree] * n
    columns = zip(*(leaf[:n].unbind() if isinstance(leaf, Tensor) else leaf for leaf in leaves), strict=True)
    return [tree_unflatten(row, spec) for row in columns]
