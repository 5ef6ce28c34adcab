"""Linear models."""

from __future__ import annotations

from torch import Tensor, nn

from motley.nets.models import Split, model, numbers


class Logistic(Split):
    """One linear layer on the flattened input."""

    is_linear = True  # an executor may train it as such

    def __init__(self, n_inputs: int, classes: int, zero: bool) -> None:
        super().__init__()
        self.head = nn.Linear(n_inputs, classes)
        if zero:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)


@model
def logistic(shape: tuple[int, ...], classes: int, vocabulary: int = 0, zero: bool = True) -> Logistic:
    """Multinomial logistic regression (MCLR); convex, so it starts at zero unless ``zero=false``."""
    return Logistic(numbers("logistic", shape, vocabulary), classes, zero)
