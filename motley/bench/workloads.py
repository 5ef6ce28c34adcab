"""One workload that several frameworks carry out: the same clients, cohorts, steps, model, precision and device.

`bare` is the loop anyone would write in PyTorch, `motley` a real run of Motley. Both give a `Timing`, as do the peers.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from motley.bench.cases import Case, make_data
from motley.client.minibatch import n_steps
from motley.core.errors import InputError, TrainingError
from motley.core.keys import Key, fold_in, permutation
from motley.core.tasks import Assignment, Failed, Finished
from motley.core.types import Pool, Round
from motley.data.federated import FederatedData
from motley.engine.device import precision as products
from motley.engine.executor import Executor, Own
from motley.nets.conv import conv_formulation
from motley.nets.zoo import build
from motley.runtime.experiment import Given, prepare
from motley.runtime.launch import Run, executor_of
from motley.runtime.recipe import load
from motley.server.method_server import uniform
from motley.server.tally import Tally

PRECISIONS = ("tf32", "float32")


@dataclass(frozen=True)
class Plan:
    """What everyone has to do, in numbers alone, so that it can be sent to other processes.

    The rounds that count are ``rehearsal + warmup + 1`` to ``rehearsal + warmup + rounds``. Motley's batched executor
    trains from round 1, everyone else from round ``rehearsal + 1``: it has then met cohorts of many shapes, as in a run
    of some length, and everyone is measured on the same cohorts. ``alike``: every client holds copies of one sample, so
    that the order of minibatches plays no part.
    """

    case: Case
    device: str = "cpu"
    precision: str = "float32"
    rounds: int = 3
    warmup: int = 1
    rehearsal: int = 0
    alike: bool = False

    def content(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def of(cls, content: dict[str, Any]) -> Plan:
        case = content["case"]
        return cls(**{**content, "case": Case(**{**case, "shape": tuple(case["shape"])})})

    @property
    def numbers(self) -> range:
        """The rounds that everyone trains."""
        first = self.rehearsal + 1
        return range(first, first + self.warmup + self.rounds)


class Timing(NamedTuple):
    """What a framework did."""

    seconds: list[float]  # of each round that counts
    steps: int  # minibatch steps of all clients in the rounds of `Plan.numbers`
    model: Tensor  # [P], where it ended


@contextmanager
def precision(name: str) -> Iterator[None]:
    """TF32 for matrix products and convolutions, or exact float32. It concerns CUDA alone."""
    if name not in PRECISIONS:
        raise InputError(f"There is no precision '{name}'; choose one of {', '.join(PRECISIONS)}.")
    with products(name):
        yield


class Workload:
    """A plan with its data, its model and its cohorts."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.case = plan, plan.case
        self.key = Key.root(0)
        data = make_data(plan.case, self.key.fold("data"))
        self.data: FederatedData = _alike(data) if plan.alike else data
        dataset = data.dataset
        self.net = build(
            plan.case.model, dataset.input_shape, plan.case.classes, dataset.vocabulary, self.key.fold("init")
        )
        self.device = torch.device(plan.device)

    @cached_property
    def cohorts(self) -> dict[int, list[int]]:
        """Who trains in each round of `Plan.numbers`: as Motley draws them."""
        pool = Pool(torch.arange(self.case.population), torch.from_numpy(self.data.sizes.copy()))

        def drawn(number: int) -> list[int]:
            rnd = Round(number, self.key.fold("round", number), min(self.case.cohort, self.case.population), 0.0, None)
            return uniform(rnd, pool).tolist()

        return {number: drawn(number) for number in self.plan.numbers}

    @property
    def wanted_steps(self) -> int:
        """Minibatch steps of all rounds of `Plan.numbers`."""
        return sum(self.steps(client) for cohort in self.cohorts.values() for client in cohort)

    @property
    def counted_steps(self) -> int:
        """Minibatch steps of the rounds that count."""
        return sum(
            self.steps(client) for number in self.plan.numbers[self.plan.warmup :] for client in self.cohorts[number]
        )

    def steps(self, client: int) -> int:
        return n_steps(self.case.epochs, int(self.data.sizes[client]), self.case.batch_size)

    @cached_property
    def clients(self) -> list[tuple[Tensor, Tensor]]:
        """Every client's inputs and labels on the device, ready for the network."""
        dataset = self.data.dataset
        x = dataset.inputs(dataset.x.to(self.device))
        y = dataset.y.to(self.device)
        sizes = self.data.sizes.tolist()
        return list(zip(x.split(sizes), y.split(sizes), strict=True))

    def module(self) -> nn.Module:
        """A copy of the first model on the device."""
        return copy.deepcopy(self.net.module).to(self.device)

    def flat(self, module: nn.Module) -> Tensor:
        """A module's weights as one vector."""
        named = {name: value.detach().cpu() for name, value in module.named_parameters()}
        return self.net.layout.flatten(named)

    def wait(self) -> None:
        """Until the device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _alike(data: FederatedData) -> FederatedData:
    """Each client's samples replaced by copies of its first."""
    first = torch.from_numpy(data.partition.offsets[:-1].copy()).repeat_interleave(torch.from_numpy(data.sizes.copy()))
    dataset = data.dataset
    return replace(data, dataset=replace(dataset, x=dataset.x[first], y=dataset.y[first]))


@contextmanager
def plainly(plan: Plan) -> Iterator[None]:
    """As one client at a time is best computed: torch's own convolution and pooling, in the plan's precision."""
    with precision(plan.precision), conv_formulation("direct"):
        yield


class Stopwatch:
    """Times of the ends of rounds."""

    def __init__(self, workload: Workload) -> None:
        self.wait = workload.wait
        self.stamps: list[float] = []

    def __call__(self) -> None:
        self.wait()
        self.stamps.append(time.perf_counter())

    def seconds(self, rounds: int) -> list[float]:
        """Durations of the last rounds."""
        return [b - a for a, b in zip(self.stamps, self.stamps[1:], strict=False)][-rounds:]


# ------------------------------------------------------------------------------------------------ the bare loop


def bare(workload: Workload) -> Timing:
    """A module, an optimizer, minibatches, a weighted mean; on exactly the minibatches that Motley draws.

    Their order is drawn beforehand, so the loop is charged for training and averaging alone.
    """
    with plainly(workload.plan):
        module = workload.module()
        orders = {number: _orders(workload, number) for number in workload.plan.numbers}
        clients = workload.clients
        watch = Stopwatch(workload)
        steps = 0
        watch()
        for number in workload.plan.numbers:
            steps += _bare_round(workload, module, clients, orders[number])
            watch()
        return Timing(watch.seconds(workload.plan.rounds), steps, workload.flat(module))


def _orders(workload: Workload, number: int) -> list[tuple[int, list[Tensor]]]:
    """Each client of a round with its order of samples in each epoch."""
    made = []
    for client in workload.cohorts[number]:
        key = workload.key.fold("client", number, client).tensor()
        n = int(workload.data.sizes[client])
        epochs = range(math.ceil(workload.case.epochs))
        made.append((client, [permutation(fold_in(key, epoch), n).to(workload.device) for epoch in epochs]))
    return made


def _bare_round(
    workload: Workload,
    module: nn.Module,
    clients: Sequence[tuple[Tensor, Tensor]],
    orders: list[tuple[int, list[Tensor]]],
) -> int:
    """Trains a cohort and leaves the weighted mean in the module; the number of steps."""
    case, steps = workload.case, 0
    parameters: list[Tensor] = list(module.parameters())
    start = [parameter.detach().clone() for parameter in parameters]
    mean = [torch.zeros_like(value) for value in start]
    total = sum(len(clients[client][1]) for client, _ in orders)
    for client, epochs in orders:
        with torch.no_grad():
            torch._foreach_copy_(parameters, start)
        x, y = clients[client]
        steps += descend(module, ((x[order], y[order]) for order in epochs), case)
        torch._foreach_add_(mean, [parameter.detach() for parameter in parameters], alpha=len(y) / total)
    with torch.no_grad():
        torch._foreach_copy_(list[Tensor](parameters), mean)
    return steps


def descend(module: nn.Module, epochs: Iterable[tuple[Tensor, Tensor]], case: Case) -> int:
    """Passes over one client's samples, in minibatches; the number of steps."""
    optimizer = torch.optim.SGD(module.parameters(), lr=case.lr)
    steps = 0
    for x, y in epochs:
        for inputs, labels in zip(x.split(case.batch_size), y.split(case.batch_size), strict=True):
            optimizer.zero_grad()
            cross_entropy(module(inputs), labels).backward()
            optimizer.step()
            steps += 1
    return steps


# ------------------------------------------------------------------------------------------------ Motley


class _Counted:
    """An executor that counts the steps it was asked for."""

    def __init__(self, inner: Executor, workload: Workload) -> None:
        self.inner, self.workload = inner, workload
        self.name, self.device = inner.name, inner.device
        self.steps = 0

    def submit(self, assignments: Sequence[Assignment], own: Own) -> Iterator[Finished | Failed]:
        self.steps += sum(self.workload.steps(a.client) for a in assignments if a.round in self.workload.plan.numbers)
        return self.inner.submit(assignments, own)

    def close(self) -> None:
        self.inner.close()


def motley(workload: Workload, executor: str) -> Timing:
    """Rounds of a real run, from selection to the new global model, without evaluation."""
    plan, case = workload.plan, workload.case
    recipe = load(
        {
            "clients": case.population,
            "cohort": case.cohort,
            "epochs": float(case.epochs),
            "batch_size": case.batch_size,
            "lr": case.lr,
            "method": case.method,
            "optimizer": case.optimizer,
            "rounds": plan.numbers[-1],
            "executor": executor,
            "device": plan.device,
            "precision": plan.precision,
        }
    )
    watch = Stopwatch(workload)
    with precision(plan.precision):
        experiment = prepare(recipe, Given(data=workload.data, net=workload.net))
        counted = _Counted(executor_of(experiment), workload)
        run = Run(experiment, executor=counted)
        if counted.name != "batched":
            run.fed.ledger.round = plan.rehearsal  # it makes nothing ready that could be used again
        try:
            watch()
            run.bare_rounds(_watching(workload, watch))
        finally:
            run.close()
    return Timing(watch.seconds(plan.rounds), counted.steps, run.model.cpu())


def _watching(workload: Workload, watch: Stopwatch) -> Callable[[Round, Tally], None]:
    def after(rnd: Round, tally: Tally) -> None:
        watch()
        if rnd.number in workload.plan.numbers and tally.participants != workload.cohorts[rnd.number]:
            raise TrainingError(f"Motley trained other clients in round {rnd.number} than the peers would.")

    return after
