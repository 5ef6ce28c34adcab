"""From tasks to a group: what the clients that train together need, stacked and on the device."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map

from motley.client.trainer import Training, span_of, trainable
from motley.core.stacking import sent, stack_trees
from motley.core.tasks import Assignment, Kept
from motley.core.types import Facts
from motley.data.federated import Partition
from motley.engine.batched.group import Drawn, Group
from motley.engine.batched.steps import Shared
from motley.engine.executor import Own
from motley.engine.loop import dial_tensors


class Assembler:
    """Makes groups for one device.

    apart: the device gets the sample ids of a group's clients alone, so that the others of a population take no memory
    on it; otherwise it reads the partition where it lies.
    """

    def __init__(self, training: Training, partition: Partition, device: torch.device, apart: bool) -> None:
        self.training, self.partition, self.device, self.apart = training, partition, device, apart

    def __call__(self, tasks: list[Assignment], facts: Facts, own: Own, width: int) -> Group:
        """A group of tasks that train the same layers, those with most steps first; padded to ``width``."""
        training, padding = self.training, width - len(tasks)
        trained = self._trained(facts)
        span, whole = span_of(trained)
        shared = _shared(tasks)
        work = _work(facts, training.batch_size, padding)
        (clients, rounds, keys, n, steps, per_epoch), index, offsets = self._placed(
            [*_identities(tasks, padding), *work], tasks
        )
        return Group(
            tasks=tasks,
            trained=trained,
            span=span,
            masked=not whole or training.method.has("epoch"),
            shared=shared,
            told=facts,
            facts=self._facts(clients, rounds, facts, padding),
            start=self._common([a.start.value for a in tasks], shared.start, padding),
            down=self._common([a.down.tree for a in tasks], shared.down, padding),
            dials=self._dials(tasks, shared, padding),
            own=self._owned(tasks, facts, own, padding),
            drawn=Drawn(keys, index, offsets, n, steps, training.batch_size),
            per_epoch=per_epoch,
            samples=work.samples,
            counts=work.counts,
            epoch_steps=work.epoch_steps,
        )

    def _trained(self, facts: Facts) -> Tensor:
        """The layers that these clients train: [n_layers]."""
        if self.training.method.has("trainable"):
            return trainable(self.training, facts.row(0))
        return torch.ones(self.training.net.n_layers)

    def _placed(self, columns: list[list[int]], tasks: list[Assignment]) -> tuple[list[Tensor], Tensor, Tensor]:
        """Columns of numbers on the device, sample ids, and where each client's begin."""
        if self.apart:
            return _with_samples(columns, [self.partition[a.client] for a in tasks], self.device)
        offsets = self.partition.offsets[columns[0]].tolist()
        *placed, begins = sent(torch.tensor([*columns, offsets]), self.device)
        return placed, torch.from_numpy(self.partition.index), begins

    def _facts(self, clients: Tensor, rounds: Tensor, told: Facts, padding: int) -> Facts:
        table = torch.stack([told.n, *told[4:]])
        labels = told.labels
        if padding:
            table = torch.cat([table, table[:, -1:].expand(-1, padding)], 1)
            labels = torch.cat([labels, labels[-1:].expand(padding, -1)])
        n, *rest = sent(table.contiguous(), self.device)
        return Facts(clients, rounds, n, sent(labels.contiguous(), self.device), *rest)

    def _dials(self, tasks: list[Assignment], shared: Shared, padding: int) -> dict[str, dict[str, Tensor]]:
        some = tasks[:1] if shared.down else tasks
        found: dict[str, dict[str, Tensor]] = self._common([dial_tensors(a.dials) for a in some], shared.down, padding)
        return found

    def _owned(self, tasks: list[Assignment], facts: Facts, own: Own, padding: int) -> Kept:
        """What parts keep on these clients, stacked; made new where a client takes part for the first time."""
        hooks = self.training.method.hooks("keep")
        if not hooks:
            return {}

        def state(k: int, a: Assignment) -> Kept:
            kept = own(a.client)
            if kept is not None:
                return kept
            mine = self._moved(facts.row(k))
            return {name: hook(self.training.net, a.start.value, mine) for name, hook in hooks}

        found: Kept = self._stacked([state(k, a) for k, a in enumerate(tasks)], padding)
        return found

    def _common(self, trees: list[Any], shared: bool, padding: int) -> Any:
        """The first of equal trees, or all of them stacked."""
        return self._moved(trees[0]) if shared else self._stacked(trees, padding)

    def _stacked(self, trees: list[Any], padding: int) -> Any:
        return self._moved(stack_trees(_padded(trees, padding)))

    def _moved(self, tree: Any) -> Any:
        return tree_map(lambda leaf: leaf.to(self.device) if isinstance(leaf, Tensor) else leaf, tree)


class _Work(NamedTuple):
    """Samples, steps, and steps per epoch of each client, on the host; padding takes no steps."""

    samples: list[int]
    counts: list[int]
    epoch_steps: list[int]


def _work(facts: Facts, batch_size: int, padding: int) -> _Work:
    samples = [int(n) for n in _padded(facts.n.tolist(), padding)]
    counts = [int(n) for n in facts.steps.tolist()] + [0] * padding
    return _Work(samples, counts, [-(-n // batch_size) for n in samples])


def _identities(tasks: list[Assignment], padding: int) -> list[list[int]]:
    """Client, round and key of each task."""
    columns = [a.client for a in tasks], [a.round for a in tasks], [a.key.signed for a in tasks]
    return [_padded(column, padding) for column in columns]


def _shared(tasks: list[Assignment]) -> Shared:
    """Whether tasks start from one model, and whether they were sent the same."""
    first = tasks[0]
    return Shared(
        all(a.start.same(first.start) for a in tasks),
        all(a.down.same(first.down) and (a.dials is first.dials or a.dials == first.dials) for a in tasks),
    )


def _padded(values: list[Any], padding: int) -> list[Any]:
    return values + values[-1:] * padding


def _with_samples(
    columns: list[list[int]], samples: list[NDArray[np.int64]], device: torch.device
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Columns of numbers, all clients' sample ids and where each one's begin among them, sent as one tensor.

    Columns may be longer than there are clients: the rest stands for the last one.
    """
    begins = [0, *accumulate(map(len, samples))][:-1]
    begins += begins[-1:] * (len(columns[0]) - len(begins))
    spare = [begins] * ((len(columns) + 1) % 2)  # with an even number, what follows lies where wide loads can begin
    head = np.array([*columns, *spare, begins])
    placed = sent(torch.from_numpy(np.concatenate([head.ravel(), *samples])), device)
    *table, offsets = placed[: head.size].view(head.shape)
    return table[: len(columns)], placed[head.size :], offsets
