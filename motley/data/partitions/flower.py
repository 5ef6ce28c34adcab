"""The names and arguments of flwr-datasets' partitioners, for those who come from there.

``dirichlet(alpha=0.5, min_partition_size=10)`` and ``DirichletPartitioner(num_partitions=10, partition_by="label",
alpha=0.5)`` both mean Motley's ``dirichlet``.
"""

from __future__ import annotations

import re

from motley.core.errors import PartitionError
from motley.core.registry import Call

NAMES = {
    "pathological": "classes",
    "natural_id": "natural",
    "shard": "shards",
}
ARGUMENTS = {
    "min_partition_size": "min_size",
    "self_balancing": "balance",
    "num_classes_per_partition": "per_client",
    "num_shards_per_partition": "per_client",
}
IGNORED = {"shuffle", "seed"}  # every draw comes from the run's seed


def translate(call: Call, clients: int | None) -> tuple[Call, int | None]:
    """A call with Motley's names, and the number of clients (`num_partitions` where that is given)."""
    plain = re.sub(r"(?<!^)(?=[A-Z])", "_", call.name).lower().removesuffix("_partitioner") if call.name else ""
    plain = {"i_i_d": "iid"}.get(plain, plain)
    name = NAMES.get(plain, plain)
    arguments = {ARGUMENTS.get(key, key): value for key, value in call.arguments.items() if key not in IGNORED}
    if "partition_by" in arguments:
        by = arguments.pop("partition_by")
        if name == "natural":
            arguments["group"] = by
    given = arguments.pop("num_partitions", None)
    if given is not None and clients is not None and given != clients:
        raise PartitionError(f"The partition asks for {given} clients, but clients={clients}; give one of them.")
    return Call(name, arguments), given if given is not None else clients
