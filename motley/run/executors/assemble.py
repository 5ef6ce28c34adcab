"""From jobs to a group: what the clients that train together need, stacked and on the device."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map

from motley.client.trainer import Training, span_of, trainable
from motley.core.types import Facts, Tree, sent, stack_trees
from motley.data.federated import Partition
from motley.run.executors.base import Job
from motley.run.executors.group import Group
from motley.run.executors.steps import Shared


def assemble(
    training: Training, partition: Partition, jobs: list[Job], width: int, device: torch.device, apart: bool
) -> Group:
    """Jobs that train the same layers, those with most steps first; padded to ``width`` by jobs without a step.

    apart: the device gets the sample ids of these clients alone, so that the others of a population take no memory on
    it; otherwise it reads the partition where it lies.
    """
    everything = torch.ones(training.net.n_layers)
    trained = trainable(training, jobs[0].facts.tensors()) if training.method.has("trainable") else everything
    span, whole = span_of(trained)
    real = [job.client for job in jobs]
    jobs = jobs + [jobs[-1]._replace(steps=0)] * (width - len(jobs))
    first = jobs[0]
    shared = Shared(
        all(job.start is first.start for job in jobs),
        all(job.down is first.down and job.dials is first.dials for job in jobs),
    )
    sizes, counts = [int(job.facts.n) for job in jobs], [job.steps for job in jobs]
    epoch_steps = [-(-n // training.batch_size) for n in sizes]
    ids, numbers = [job.client for job in jobs], [job.facts.round for job in jobs]
    columns = [ids, numbers, [job.key.signed for job in jobs], sizes, counts, epoch_steps]
    if apart:
        (clients, rounds, keys, *others), index, offsets = _with_samples(columns, [partition[i] for i in real], device)
    else:
        clients, rounds, keys, *others, offsets = sent(
            torch.tensor([*columns, partition.offsets[ids].tolist()]), device
        )
        index = torch.from_numpy(partition.index)
    table = torch.tensor([(job.facts.n, *job.facts[4:]) for job in jobs], dtype=torch.float32).T.contiguous()
    n, *rest = sent(table, device)
    labels = sent(torch.from_numpy(np.stack([job.facts.labels for job in jobs])).to(torch.float32), device)
    return Group(
        jobs=jobs,
        trained=trained,
        span=span,
        masked=not whole or training.method.adaptive,
        shared=shared,
        facts=Facts(clients, rounds, n, labels, *rest),
        start=first.start.to(device) if shared.start else torch.stack([job.start for job in jobs]).to(device),
        down=_moved(first.down if shared.down else stack_trees([job.down for job in jobs]), device),
        dials=_moved(first.dials if shared.down else stack_trees([job.dials for job in jobs]), device),
        own=_owned(training, jobs, device),
        keys=keys,
        index=index,
        offsets=offsets,
        sizes=others[0],
        steps=others[1],
        per_epoch=others[2],
        samples=sizes,
        counts=counts,
        epoch_steps=epoch_steps,
    )


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


def _moved(tree: Any, device: torch.device) -> Any:
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tree)


def _owned(training: Training, jobs: list[Job], device: torch.device) -> dict[str, Tree]:
    """What parts keep on these clients, stacked; made new where a client takes part for the first time."""
    hooks = training.method.hooks("keep")
    if not hooks:
        return {}

    def state(job: Job) -> dict[str, Tree]:
        if job.own is not None:
            return job.own
        facts = _moved(job.facts.tensors(), device)
        return {name: hook(training.net, job.start, facts) for name, hook in hooks}

    stacked: dict[str, Tree] = _moved(stack_trees([state(job) for job in jobs]), device)
    return stacked
