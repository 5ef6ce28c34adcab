"""The workload in Flower: `FedAvg` and a `ClientApp` on its simulation runtime, several actors sharing the device.

Every actor loads the data once and keeps it on the device. Clients train as in Flower's PyTorch quickstart.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from torch import nn

from motley.bench import peers_process
from motley.bench.workloads import Plan, Timing, Workload, descend, plainly

NAME = "flower"
_ACTORS = "MOTLEY_BENCH_ACTORS"


def installed() -> bool:
    return find_spec("flwr") is not None and find_spec("ray") is not None


def measure(plans: Sequence[Plan], processes: int = 1, limit: float = peers_process.LIMIT) -> list[Timing]:
    """All plans, with this many actors."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    return peers_process.run(__name__, plans, limit, 1, [{**quiet, _ACTORS: str(processes)}])


@cache
def _here(plan: str) -> tuple[Workload, nn.Module]:
    """The workload in an actor."""
    workload = Workload(Plan.of(json.loads(plan)))
    return workload, workload.module()


def _client_app() -> Any:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        config = message.content["config"]
        workload, module = _here(config["plan"])
        with plainly(workload.plan):
            module.load_state_dict(message.content["arrays"].to_torch_state_dict())
            x, y = workload.clients[config["client"]]
            steps = descend(module, ((x, y) for _ in range(int(workload.case.epochs))), workload.case)
            metrics = MetricRecord({"num-examples": len(y), "steps": steps})
            content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
            return Message(content=content, reply_to=message)

    return app


def _strategy(workload: Workload) -> Any:
    """FedAvg that takes the cohorts of the workload and notes when each round ends."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
    from flwr.serverapp.strategy import FedAvg

    plan = json.dumps(workload.plan.content())

    class Stamped(FedAvg):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(fraction_train=1.0, fraction_evaluate=0.0)
            self.stamps: list[float] = []
            self.steps = 0

        def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
            if not self.stamps:
                self.stamps.append(time.perf_counter())
            cohort = workload.cohorts[workload.plan.numbers[server_round - 1]]
            nodes = sorted(grid.get_node_ids())
            for client in cohort:
                each = ConfigRecord({"client": client, "plan": plan})
                content = RecordDict({"arrays": arrays, "config": each})
                yield Message(content=content, dst_node_id=nodes[client], message_type=MessageType.TRAIN)

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            self.steps += sum(int(reply.content["metrics"]["steps"]) for reply in replies if not reply.has_error())
            made = super().aggregate_train(server_round, replies)
            self.stamps.append(time.perf_counter())
            return made

    return Stamped()


def train(workload: Workload) -> Timing:
    """All rounds of a workload, by Flower."""
    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy.strategy_utils import sample_nodes
    from flwr.simulation import run_simulation

    plan, actors = workload.plan, int(os.environ.get(_ACTORS, "1"))
    server, strategy = ServerApp(), _strategy(workload)
    ended: dict[str, Any] = {}

    @server.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        sample_nodes(grid, workload.case.population, 1)  # until all clients are there
        first = ArrayRecord(workload.net.module.state_dict())
        ended["result"] = strategy.start(grid=grid, initial_arrays=first, num_rounds=len(plan.numbers))

    run_simulation(
        server_app=server,
        client_app=_client_app(),
        num_supernodes=workload.case.population,
        backend_config={
            "init_args": {"num_cpus": actors},
            "client_resources": {"num_cpus": 1, "num_gpus": 1 / actors if plan.device == "cuda" else 0.0},
        },
    )
    module = workload.net.module
    module.load_state_dict(ended["result"].arrays.to_torch_state_dict())
    seconds = [b - a for a, b in zip(strategy.stamps, strategy.stamps[1:], strict=False)][-plan.rounds :]
    return Timing(seconds, strategy.steps, workload.flat(module))
