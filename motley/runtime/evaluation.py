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
def predict(net: Network, problem: Problem, params: Tensor, dataset: Dataset, batch_size: int = 2048) -> Tensor:
    """What the problem keeps of the outputs for the test samples, on the parameters' device."""
    pairs = zip(dataset.test_x.split(batch_size), dataset.test_y.split(batch_size), strict=True)
    home = params.device
    return torch.cat([problem.kept(net(params, dataset.inputs(x.to(home))).logits, y.to(home)) for x, y in pairs])


def evaluate(net: Network, problem: Problem, params: Tensor, dataset: Dataset) -> Judged:
    """A model on the test set of a data set."""
    outputs, y = predict(net, problem, params, dataset), dataset.test_y.to(params.device)
    return Judged(problem, outputs, y, problem.judge(outputs, y))


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
