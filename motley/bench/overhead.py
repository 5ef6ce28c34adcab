"""What Motley costs: one round of the `loop` executor beside a bare PyTorch loop that does the same steps.

Both train the same clients on the same minibatches with the same model, one thread, from the same weights; both take
the weighted mean. The two alternate, so that a machine that changes its speed does so for both.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from motley.core.keys import Key, fold_in, permutation
from motley.core.types import Data
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData
from motley.data.partitioning import make_partition
from motley.engine.loop import one_thread
from motley.nets.zoo import build
from motley.runtime.experiment import Given, prepare
from motley.runtime.launch import Run
from motley.runtime.recipe import Recipe, load


class Case(NamedTuple):
    """A model and a minibatch size."""

    name: str
    model: str
    batch_size: int
    clients: int
    samples: int  # per client


CASES = (
    Case("mlp, batch 10", "mlp(hidden=[200])", 10, 10, 300),
    Case("cnn, batch 50", "cnn_ama", 50, 5, 200),
)


def images(n: int) -> Dataset:
    """Random pictures of MNIST's size; time does not depend on what they show."""
    rng = Key.root(0).fold("overhead").generator()
    x = torch.from_numpy(rng.standard_normal((n, 1, 28, 28), dtype="float32"))
    y = torch.from_numpy(rng.integers(0, 10, n))
    return Dataset("random", x, y, x[:1], y[:1], 10, kind="image")


class Bare:
    """The same round as anyone would write it in PyTorch: a module, an optimizer, minibatches, a weighted mean."""

    def __init__(self, module: nn.Module, data: FederatedData, recipe: Recipe) -> None:
        self.module = copy.deepcopy(module)
        self.data = data
        self.recipe = recipe
        self.key = Key.root(recipe.seed)
        self.start = [parameter.detach().clone() for parameter in module.parameters()]

    def train(self, client: Data, key: Tensor) -> list[Tensor]:
        """One client's local epochs."""
        parameters = list(self.module.parameters())
        with torch.no_grad():
            for parameter, value in zip(parameters, self.start, strict=True):
                parameter.copy_(value)
        optimizer = torch.optim.SGD(parameters, lr=self.recipe.lr)
        loss_of = nn.CrossEntropyLoss()
        for epoch in range(math.ceil(self.recipe.epochs)):
            order = permutation(fold_in(key, epoch), len(client.y))
            for rows in order.split(self.recipe.batch_size):
                optimizer.zero_grad()
                loss_of(self.module(client.x[rows]), client.y[rows]).backward()
                optimizer.step()
        return [parameter.detach().clone() for parameter in parameters]

    def round(self, number: int, cohort: list[int]) -> list[Tensor]:
        """All clients of a cohort and their weighted mean."""
        total = float(self.data.sizes[cohort].sum())
        mean = [torch.zeros_like(value) for value in self.start]
        for client in cohort:
            key = self.key.fold("client", number, client).tensor()
            trained = self.train(self.data.client(client), key)
            torch._foreach_add_(mean, trained, alpha=float(self.data.sizes[client]) / total)
        return mean


def _cpu_ms(measure: Callable[[], Any]) -> float:
    """Both sides use one thread, so its CPU time is their duration, and other work on the machine counts less."""
    begun = time.process_time()
    measure()
    return 1000 * (time.process_time() - begun)


def measure(case: Case, repeats: int = 5) -> dict[str, Any]:
    """Milliseconds of one round each way, the median of ``repeats``, and their ratio."""
    dataset = images(case.clients * case.samples)
    settings = {"clients": case.clients, "cohort": case.clients, "batch_size": case.batch_size}
    recipe = load({**settings, "rounds": 1, "lr": 0.01, "executor": "loop"})
    data = FederatedData(dataset, make_partition("iid", dataset, case.clients, Key.root(0)))
    net = build(case.model, dataset.input_shape, dataset.n_classes, 0, Key.root(0))
    bare = Bare(net.module, data, recipe)
    ours: list[float] = []
    theirs: list[float] = []
    with one_thread():
        for turn in range(repeats + 1):
            run = Run(prepare(recipe, Given(data=data, net=net)))
            mine = _cpu_ms(run.bare_rounds)
            other = _cpu_ms(lambda: bare.round(1, list(range(case.clients))))
            if turn:  # the first warms up
                ours.append(mine)
                theirs.append(other)
    return {
        "case": case.name,
        "executor": "loop",
        "device": "cpu",
        "ms_per_round": round(statistics.median(ours), 2),
        "ms_per_round_bare": round(statistics.median(theirs), 2),
        "ratio_to_bare_loop": round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3),
    }


def overhead(repeats: int = 5) -> list[dict[str, Any]]:
    """One row per case."""
    return [measure(case, repeats) for case in CASES]
