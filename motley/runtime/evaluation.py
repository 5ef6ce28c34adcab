"""How good a model is on samples that were held out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from motley.core.network import Network
from motley.core.problem import Problem
from motley.data.dataset import Dataset, tensors_to

WIDEST = 8  # bytes of an input as a network takes it: int64 tokens
READY_BYTES = 1 << 29


@dataclass(frozen=True)
class Judged:
    """A model's outputs on test samples, and what they are worth."""

    problem: Problem
    outputs: Tensor
    y: Tensor
    scores: dict[str, float]

    def details(self) -> dict[str, list[float]]:
        """Lists of numbers, such as the accuracy of each class."""
        return self.problem.details(self.outputs, self.y)


@torch.no_grad()
def predict(net: Network, params: Tensor, dataset: Dataset, x: Tensor, batch_size: int = 2048) -> Tensor:
    """Outputs for stored inputs [N, ...], on the parameters' device."""
    return torch.cat([net(params, dataset.inputs(part.to(params.device))).logits for part in x.split(batch_size)])


def evaluate(net: Network, problem: Problem, params: Tensor, dataset: Dataset) -> Judged:
    """A model on the test set of a data set."""
    outputs, y = predict(net, params, dataset, dataset.test_x), dataset.test_y.to(params.device)
    return Judged(problem, outputs, y, problem.scores(outputs, y))


def ready_to_judge(device: torch.device, dataset: Dataset) -> Dataset:
    """A data set with its test samples where the model is, and, where memory allows, as the network takes them.

    They are looked at again and again; turning bytes into numbers can take longer than a small network does.
    """
    moved = replace(
        dataset,
        test_x=dataset.test_x.to(device),
        test_y=dataset.test_y.to(device),
        scaling=tensors_to(dataset.scaling, device),
    )
    if moved.scaling is None or moved.test_x.numel() * WIDEST > READY_BYTES:
        return moved
    return replace(moved, test_x=moved.inputs(moved.test_x), scaling=None)
