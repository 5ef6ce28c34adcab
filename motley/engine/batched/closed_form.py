"""Local training of linear softmax models on a CPU: the whole step of many clients in five operations.

For plain SGD, with no part that changes the loss or the gradient, the gradient needs no differentiation:

    Z = W X' + b,   G = (softmax(Z) - Y) * rate / n,   W = W - G X,   b = b - G 1

with classes along the rows of Z [C, B]; the losses of all steps are taken from their Z afterwards. This is what the
general path computes, without its bookkeeping. Everything else takes the general path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from motley.client.optimizer import SGD
from motley.client.trainer import Training
from motley.core.acceleration import declare
from motley.data.federated import FederatedData
from motley.engine.batched.minibatches import Batches, Table
from motley.engine.kernels.descent_op import is_plain_linear

declare("linear training on a CPU", "classification by a linear model and plain SGD")
BLOCK_BYTES = 1 << 20  # what is made ready at once stays in the cache until it is used


def fits(training: Training, data: FederatedData) -> bool:
    """Whether a run can be trained in this way."""
    return is_plain_linear(training, data) and training.optimizer == SGD()


class Plan(NamedTuple):
    """What some steps of w clients take beside the inputs."""

    rows: Tensor  # [S, w, B] of the training set
    y: Tensor  # [S, w, B]
    share: Tensor  # [S, w, B] of a sample in its minibatch's mean
    rate: Tensor  # [S, w, 1, B] learning rate times share; 0 for whoever is done
    target: Tensor  # [S, w, C, B] minus the rate where the label is


class Descent:
    """The moving weights of K clients, those with most steps first."""

    def __init__(self, training: Training, data: FederatedData, params: Tensor, lr: Tensor, steps: Tensor) -> None:
        self.n_classes, self.n_inputs = training.net.n_classes, training.net.n_features
        weight, bias = params.split([self.n_classes * self.n_inputs, self.n_classes], dim=1)
        self.weight = weight.clone(memory_format=torch.contiguous_format).view(-1, self.n_classes, self.n_inputs)
        self.bias = bias.clone(memory_format=torch.contiguous_format).unsqueeze(-1)
        self.x, self.y = data.dataset.x.flatten(1), data.dataset.y
        self.lr, self.steps = lr, steps
        self._fetched = torch.empty(0, self.n_inputs)

    @property
    def params(self) -> Tensor:
        """As flat vectors [K, P]."""
        return torch.cat([self.weight.flatten(1), self.bias.flatten(1)], dim=1)

    def plan(self, drawn: Table, begin: int) -> Plan:
        """Of as many steps as were drawn, the first of which has the number ``begin``."""
        rows, mask = drawn
        n, width, batch = rows.shape
        numbers = torch.arange(begin, begin + n)[:, None]
        y = self.y[rows]
        share = torch.full(rows.shape, 1.0 / batch) if mask is None else mask / mask.sum(-1, keepdim=True).clamp_min(1)
        rate = (self.lr[:width] * (numbers < self.steps[:width])).unsqueeze(-1) * share
        target = torch.zeros(n, width, self.n_classes, batch).scatter_(2, y.unsqueeze(2), -rate.unsqueeze(2))
        return Plan(rows, y, share, rate.unsqueeze(2), target)

    def run(self, plan: Plan) -> Tensor:
        """Trains the first w clients; their losses [S, w]."""
        n, width, batch = plan.y.shape
        weight, bias = self.weight[:width], self.bias[:width]
        logits = torch.empty(n, width, self.n_classes, batch)
        chances, slope = torch.empty_like(logits[0]), torch.empty_like(logits[0])
        ones = torch.ones(width, batch, 1)
        columns = (column.unbind() for column in (plan.rate, plan.target, logits))
        for (x, turned), rate, target, z in zip(self._inputs(plan.rows), *columns, strict=True):
            torch.baddbmm(bias, weight, turned, out=z)
            torch._softmax(z, 1, False, out=chances)
            torch.addcmul(target, chances, rate, out=slope)
            weight.baddbmm_(slope, x, alpha=-1.0)
            bias.baddbmm_(slope, ones, alpha=-1.0)
        chosen = logits.gather(2, plan.y.unsqueeze(2)).squeeze(2)
        return ((logits.logsumexp(2) - chosen) * plan.share).sum(-1)

    def _inputs(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The inputs [w, B, D] of each step, and turned; each block of them in the memory of the one before."""
        for some in rows.split(at_once(rows[0].numel() * self.n_inputs)):
            if len(self._fetched) < some.numel():
                self._fetched = torch.empty(some.numel(), self.n_inputs)
            found = torch.index_select(self.x, 0, some.flatten(), out=self._fetched[: some.numel()])
            x = found.view(*some.shape, self.n_inputs)
            yield from zip(x.unbind(), x.mT.unbind(), strict=True)


def at_once(numbers: int) -> int:
    """How many steps that take so many numbers each are made ready together."""
    return max(1, BLOCK_BYTES // (4 * numbers))


def train(descent: Descent, batches: Batches, phases: Sequence[tuple[int, int]]) -> Tensor:
    """Steps of all phases (width, step it runs until); losses [S, K]."""
    losses = torch.zeros(phases[-1][1], len(descent.steps))
    begin = 0
    for width, until in phases:
        size = at_once(width * batches.batch_size * descent.n_classes)
        for at in range(begin, until, size):
            end = min(at + size, until)
            losses[at:end, :width] = descent.run(descent.plan(batches.table(at, end, width), at))
        begin = until
    return losses
