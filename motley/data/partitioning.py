"""Partitions, by name: who holds which training samples.

A partition is a factory ``f(dataset, clients, key, **arguments) -> Partition``; all draws come from the key, so the
same seed gives the same clients. Work is done on whole arrays, so a million clients take seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from motley.core.errors import PartitionError
from motley.core.keys import Key
from motley.core.registry import Registry, parse
from motley.data import qp
from motley.data.dataset import Dataset
from motley.data.federated import Partition
from motley.data.partitions import labels, natural, overlap, sizes
from motley.data.partitions import lists as written
from motley.data.partitions.flower import translate

PARTITIONS: Registry[Partition] = Registry("partition")
"""Factories of partitions; add your own with ``@PARTITIONS.add(hidden=HIDDEN)``."""
HIDDEN = ("dataset", "clients", "key")

_BY_LABEL: tuple[Callable[..., Partition], ...] = (
    labels.classes,
    labels.dirichlet,
    labels.inner_dirichlet,
    labels.major_minor,
    overlap.drawn,
    overlap.clustered,
    sizes.power_law,
)
_OTHERS: tuple[Callable[..., Partition], ...] = (
    labels.iid,
    labels.shards,
    sizes.size_skew,
    sizes.size,
    sizes.linear,
    sizes.square,
    sizes.exponential,
    natural.natural,
    qp.radfed,
    written.lists,
)
for _factory in (*_BY_LABEL, *_OTHERS):
    PARTITIONS.add(hidden=HIDDEN, needs=("labels",) if _factory in _BY_LABEL else ())(_factory)


def make_partition(
    spec: str, dataset: Dataset, clients: int | None, key: Key, *, empty_clients: bool = False
) -> Partition:
    """A partition from its short form, for example ``dirichlet(alpha=0.1)``; names of flwr-datasets work too.

    Clients that would hold no sample are refused, unless they are allowed.
    """
    calls = parse(spec, "partition")
    if len(calls) != 1:
        raise PartitionError(f"A run has one partition, but '{spec}' names {len(calls)}.")
    call = calls[0]
    if call.name not in PARTITIONS or not set(call.arguments) <= set(PARTITIONS[call.name].parameters):
        call, clients = translate(call, clients)
    if not dataset.n_classes and "labels" in PARTITIONS[call.name].meta.get("needs", ()):
        raise PartitionError(
            f"The partition '{call.name}' divides samples by their class, but the targets of '{dataset.name}' are "
            "numbers; take another, such as iid or size_skew."
        )
    made = PARTITIONS.make(call.name, dataset, clients, key.fold("partition", call.name), **call.arguments)
    if not empty_clients:
        made.refuse_empty()
    return made
