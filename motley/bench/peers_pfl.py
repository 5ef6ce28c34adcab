"""The workload in pfl-research: `FederatedAveraging` of a `PyTorchModel` on a `SimulatedBackend`.

Several processes work as pfl's guide to fast simulations describes it: each is told all addresses and its own rank, and
pfl divides each cohort among them, by the users' sizes.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from motley.bench import peers_process
from motley.bench.workloads import Plan, Stopwatch, Timing, Workload, plainly

NAME = "pfl"


def installed() -> bool:
    return find_spec("pfl") is not None


def measure(plans: Sequence[Plan], processes: int = 1, limit: float = peers_process.LIMIT) -> list[Timing]:
    """All plans, in one process or in several that share the device."""
    if processes == 1:
        return peers_process.run(__name__, plans, limit)
    addresses = ",".join(f"localhost:{port}" for port in _free_ports(processes))
    shared = {"PFL_WORKER_ADDRESSES": addresses}
    if sys.platform == "linux":
        shared["GLOO_SOCKET_IFNAME"] = "lo"  # a machine without a network need not know its own name
    env = [{**shared, "PFL_WORKER_RANK": str(rank)} for rank in range(processes)]
    return peers_process.run(__name__, plans, limit, processes, env)


def _free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    try:
        for each in sockets:
            each.bind(("localhost", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Trained(nn.Module):
    """The model with the two methods that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.steps = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.steps += 1
        return cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}  # nothing is evaluated


def train(workload: Workload) -> Timing:
    """All rounds of a workload, by pfl."""
    os.environ["PFL_PYTORCH_DEVICE"] = workload.plan.device
    _one_group_per_device()
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    case, plan = workload.case, workload.plan
    np.random.seed(0)  # pfl draws from the global generator, and must do so alike in all processes
    module = Trained(workload.module())
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    data = _users(workload)
    rounds = len(plan.numbers)
    watch = Stopwatch(workload)
    with plainly(plan):
        watch()
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=rounds,
                evaluation_frequency=rounds + 1,
                train_cohort_size=min(case.cohort, case.population),
                val_cohort_size=0,
            ),
            backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
            model=model,
            model_train_params=NNTrainHyperParams(
                local_learning_rate=case.lr, local_num_epochs=int(case.epochs), local_batch_size=case.batch_size
            ),
            callbacks=[_stamping(watch)],
            send_metrics_to_platform=False,
        )
    return Timing(watch.seconds(plan.rounds), module.steps, workload.flat(module.net))


def _users(workload: Workload) -> Any:
    """The clients, their tensors on the device already, in the cohorts of the workload."""
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset

    users = [Dataset(raw_data=pair, user_id=str(i)) for i, pair in enumerate(workload.clients)]
    order: Iterator[int] = itertools.cycle(itertools.chain.from_iterable(workload.cohorts.values()))
    weights = {client: workload.steps(client) for client in range(len(users))}
    return FederatedDataset(users.__getitem__, lambda: next(order), user_id_to_weight=weights)


def _stamping(watch: Stopwatch) -> Any:
    from pfl.callback.base import TrainingProcessCallback
    from pfl.metrics import Metrics

    class Stamp(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Any]:
            watch()
            return False, Metrics()

    return Stamp()


def _one_group_per_device() -> None:
    """Lets several processes share a GPU.

    pfl takes NCCL wherever there is CUDA, and NCCL refuses two processes on one GPU; Gloo does not. pfl joins its
    process group when it is first imported.
    """
    processes = len(os.environ.get("PFL_WORKER_ADDRESSES", "").split(","))
    if processes <= torch.cuda.device_count() or not torch.cuda.is_available():
        return
    join = torch.distributed.init_process_group

    def with_gloo(*args: Any, **settings: Any) -> None:
        join(*args, **{**settings, "backend": "gloo"})

    torch.distributed.init_process_group = with_gloo
