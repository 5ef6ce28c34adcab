"""What training costs a client: operations per layer, counted from the model, and what parts add to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Cost:
    """Per layer, in forward order: operations per sample, bytes of the weights, and what could only be estimated.

    Layers that are not trained (``requires_grad=False``) are none of these: their forward pass is in `frozen`, the way
    of gradients back through them in the `backward_input` of the trained layer after them, or in `frozen_after`.
    """

    forward: tuple[float, ...]  # operations of the forward pass
    backward_input: tuple[float, ...]  # of the way back to the layer's input
    backward_weight: tuple[float, ...]  # of the way back to its weights
    bytes: tuple[int, ...]  # of its weights
    notes: tuple[str, ...] = ()  # what could only be estimated
    frozen: float = 0.0  # forward pass of all that is not trained
    frozen_after: float = 0.0  # back through what is not trained and follows the last trained layer

    @property
    def n_layers(self) -> int:
        """How many layers are trained."""
        return len(self.forward)

    @property
    def whole_forward(self) -> float:
        """A forward pass of everything."""
        return sum(self.forward) + self.frozen


class Bill(NamedTuple):
    """What a task costs beside its own steps and the weights it moves. Parts add to it with the hook ``bill``."""

    forwards: float = 0.0  # further forward passes per sample and step
    backwards: float = 0.0  # further backward passes per sample and step
    passes: float = 0.0  # further forward passes over all samples, once per task
    gradients: float = 0.0  # further passes forward and back over all samples, once per task
    down: float | None = None  # bytes once per task, in place of the model

    def plus(self, **more: float) -> Bill:
        """The bill with so much more of each."""
        return self._replace(**{name: getattr(self, name) + amount for name, amount in more.items()})
