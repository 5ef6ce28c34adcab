"""Federated learning the slow way: one client after the other, one tensor after the other, straight from the equations.

Nothing of Motley's training code is used. Shared with it are the data, the first weights, who was chosen, and the
random numbers that put samples into minibatches.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from motley.core.keys import Key, fold_in, permutation
from motley.data.federated import FederatedData

Weights = list[Tensor]
Term = Callable[[Weights], Tensor]
Change = Callable[[Weights], Weights]


def add(a: Weights, b: Weights, factor: float = 1.0) -> Weights:
    return [x + factor * y for x, y in zip(a, b, strict=True)]


def minus(a: Weights, b: Weights) -> Weights:
    return add(a, b, -1.0)


def times(a: Weights, factor: float) -> Weights:
    return [factor * x for x in a]


def zeros(a: Weights) -> Weights:
    return [torch.zeros_like(x) for x in a]


def total(many: list[Weights]) -> Weights:
    result = zeros(many[0])
    for one in many:
        result = add(result, one)
    return result


def dot(a: Weights, b: Weights) -> Tensor:
    value = torch.zeros(())
    for x, y in zip(a, b, strict=True):
        value = value + (x * y).sum()
    return value


class Oracle:
    """A population of clients with data, and local SGD on one of them."""

    def __init__(self, module: nn.Module, data: FederatedData, *, seed: int, batch_size: int, lr: float) -> None:
        self.module = copy.deepcopy(module)
        self.names = [name for name, _ in self.module.named_parameters()]
        self.first: Weights = [p.detach().clone() for p in self.module.parameters()]
        self.data = data
        self.seed = seed
        self.batch_size = batch_size
        self.lr = lr

    @property
    def n_clients(self) -> int:
        return len(self.data.sizes)

    def n(self, client: int) -> int:
        return len(self.data.partition[client])

    def steps(self, client: int, epochs: float) -> int:
        """3.5 epochs are 3 whole passes and half the minibatches of a fourth."""
        return round(epochs * math.ceil(self.n(client) / self.batch_size))

    def minibatches(self, client: int, number: int, steps: int) -> list[tuple[Tensor, Tensor]]:
        rows = torch.from_numpy(self.data.partition[client])
        x, y = self.data.dataset.x[rows], self.data.dataset.y[rows]
        key = Key.root(self.seed).fold("client", number, client).tensor()
        batches: list[tuple[Tensor, Tensor]] = []
        epoch = 0
        while len(batches) < steps:
            order = permutation(fold_in(key, epoch), len(rows)).tolist()
            for begin in range(0, len(order), self.batch_size):
                some = order[begin : begin + self.batch_size]
                batches.append((x[some], y[some]))
            epoch += 1
        return batches[:steps]

    def sgd(
        self,
        start: Weights,
        client: int,
        number: int,
        epochs: float,
        *,
        term: Term | None = None,
        change: Change | None = None,
    ) -> Weights:
        """``w = w - lr * g`` over the minibatches; ``term`` is added to the loss, ``change`` corrects the gradient."""
        weights = [w.clone() for w in start]
        for x, y in self.minibatches(client, number, self.steps(client, epochs)):
            leaves = [w.clone().requires_grad_() for w in weights]
            named = dict(zip(self.names, leaves, strict=True))
            logits = torch.func.functional_call(self.module, named, (x,))
            loss = torch.zeros(())
            for row, label in zip(logits, y, strict=True):
                loss = loss - torch.log(torch.softmax(row, 0)[label])
            loss = loss / len(y)
            if term is not None:
                loss = loss + term(leaves)
            gradient = list(torch.autograd.grad(loss, leaves))
            if change is not None:
                gradient = change(gradient)
            weights = [w - self.lr * g for w, g in zip(weights, gradient, strict=True)]
        return weights

    def weighted_mean(self, models: dict[int, Weights]) -> Weights:
        """``sum_k n_k / n * w_k`` over the clients that arrived (McMahan et al., Algorithm 1)."""
        n = sum(self.n(client) for client in models)
        return total([times(model, self.n(client) / n) for client, model in models.items()])

    @staticmethod
    def plain_mean(models: dict[int, Weights]) -> Weights:
        return times(total(list(models.values())), 1 / len(models))
