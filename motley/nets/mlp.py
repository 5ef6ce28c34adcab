"""Fully connected networks."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor

from motley.nets.dense import Linear
from motley.nets.models import Split, model, numbers, widths


class MLP(Split):
    """Linear layers ``fc1, fc2, ..., head`` with ReLU between them, on the flattened input."""

    def __init__(self, n_inputs: int, hidden: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.depth = len(hidden)
        for i, (before, after) in enumerate(pairwise((n_inputs, *hidden)), 1):
            self.add_module(f"fc{i}", Linear(before, after))
        self.head = Linear(hidden[-1] if hidden else n_inputs, classes)

    def features(self, x: Tensor) -> Tensor:
        h = x.flatten(1)
        for i in range(1, self.depth + 1):
            h = self.get_submodule(f"fc{i}")(h).relu()
        return h


@model
def mlp(
    shape: tuple[int, ...], classes: int, vocabulary: int = 0, hidden: list[int] | tuple[int, ...] = (64, 64)
) -> MLP:
    """Fully connected network with ReLU ([64, 64]: RADFed for Covertype; ``hidden=[200, 200]``: the 2NN of FedAvg)."""
    return MLP(numbers("mlp", shape, vocabulary), widths("mlp", "hidden", hidden), classes)
