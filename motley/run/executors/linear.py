"""Local training of linear softmax models on a CPU: the whole step of many clients in five operations.

For plain SGD, with no part that changes the loss or the gradient, the gradient needs no differentiation:

    Z = W X' + b,   G = (softmax(Z) - Y) * rate / n,   W = W - G X,   b = b - G 1

with classes along the rows of Z [C, B]; the losses of all steps are taken from their Z afterwards. This is what the
general path computes, without its bookkeeping. Everything else takes the general path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from motley.client.optimizer import SGD
from motley.client.trainer import Training
from motley.data.federated import FederatedData
from motley.run.executors import fused
from motley.run.executors.tables import Batches, Table

BLOCK_BYTES = 1 << 20  # samples fetched at once: they stay in the cache until they are used


def fits(training: Training, data: FederatedData) -> bool:
    """Whether a run can be trained in this way."""
    shapes = [slot.shape for slot in training.net.layout.slots]
    with_bias = shapes == [(training.net.n_classes, training.net.n_features), (training.net.n_classes,)]
    return fused.is_plain_linear(training, data) and with_bias and training.optimizer == SGD()


class Block(NamedTuple):
    """What some steps of w clients take."""

    x: Tensor  # [S, w, B, D]
    y: Tensor  # [S, w, B]
    share: Tensor  # [S, w, B] of a sample in its minibatch's mean
    rate: Tensor  # [S, w, 1, B] learning rate times share; 0 for whoever is done
    target: Tensor  # [S, w, C, B] minus the rate where the label is


class Descent:
    """The moving weights of K clients, those with most steps first."""

    def __init__(self, training: Training, data: FederatedData, params: Tensor, lr: Tensor, steps: Tensor) -> None:
        self.n_classes, self.n_inputs = training.net.n_classes, training.net.n_features
        split = self.n_classes * self.n_inputs
        self.weight = (
            params[:, :split].clone(memory_format=torch.contiguous_format).view(-1, self.n_classes, self.n_inputs)
        )
        self.bias = params[:, split:].clone(memory_format=torch.contiguous_format).unsqueeze(-1)
        self.x, self.y = data.dataset.x.flatten(1), data.dataset.y
        self.lr, self.steps = lr, steps
        self._fetched = torch.empty(0, self.n_inputs)

    @property
    def params(self) -> Tensor:
        """As flat vectors [K, P]."""
        return torch.cat([self.weight.flatten(1), self.bias.flatten(1)], dim=1)

    def block(self, drawn: Table, numbers: Tensor) -> Block:
        """Fetches the samples of the steps ``numbers`` [S]."""
        rows, mask = drawn
        width, batch = rows.shape[1:]
        y = self.y[rows]
        share = torch.full(rows.shape, 1.0 / batch) if mask is None else mask / mask.sum(-1, keepdim=True).clamp_min(1)
        rate = (self.lr[:width] * (numbers[:, None] < self.steps[:width])).unsqueeze(-1) * share
        target = torch.zeros(len(rows), width, self.n_classes, batch)
        target.scatter_(2, y.unsqueeze(2), -rate.unsqueeze(2))
        return Block(self._fetch(rows), y, share, rate.unsqueeze(2), target)

    def _fetch(self, rows: Tensor) -> Tensor:
        """Samples by their rows; always into the same memory, since new memory costs as much as the copy."""
        if len(self._fetched) < rows.numel():
            self._fetched = torch.empty(rows.numel(), self.n_inputs)
        found = torch.index_select(self.x, 0, rows.flatten(), out=self._fetched[: rows.numel()])
        return found.view(*rows.shape, self.n_inputs)

    def run(self, block: Block) -> Tensor:
        """Trains the first w clients on a block of steps; their losses [S, w]."""
        n, width, batch = block.y.shape
        weight, bias = self.weight[:width], self.bias[:width]
        logits = torch.empty(n, width, self.n_classes, batch)
        chances, slope = torch.empty_like(logits[0]), torch.empty_like(logits[0])
        ones = torch.ones(width, batch, 1)
        columns = (block.x, block.x.mT, block.rate, block.target, logits)
        for x, turned, rate, target, z in zip(*(column.unbind() for column in columns), strict=True):
            torch.baddbmm(bias, weight, turned, out=z)
            torch._softmax(z, 1, False, out=chances)
            torch.addcmul(target, chances, rate, out=slope)
            weight.baddbmm_(slope, x, alpha=-1.0)
            bias.baddbmm_(slope, ones, alpha=-1.0)
        chosen = logits.gather(2, block.y.unsqueeze(2)).squeeze(2)
        return ((logits.logsumexp(2) - chosen) * block.share).sum(-1)


def train(descent: Descent, batches: Batches, phases: Sequence[tuple[int, int]]) -> Tensor:
    """Steps of all phases (width, step it runs until); losses [S, K]."""
    k, begin = len(descent.steps), 0
    losses = torch.zeros(phases[-1][1], k)
    for width, until in phases:
        drawn = batches.table(begin, until, width)
        numbers = torch.arange(begin, until)
        size = max(1, BLOCK_BYTES // (4 * width * batches.batch_size * descent.n_inputs))
        for at in range(0, until - begin, size):
            some = slice(at, at + size)
            mask = None if drawn.mask is None else drawn.mask[some]
            block = descent.block(Table(drawn.rows[some], mask), numbers[some])
            losses[begin + at : begin + at + len(block.y), :width] = descent.run(block)
        begin = until
    return losses
