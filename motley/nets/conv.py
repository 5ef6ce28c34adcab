"""Convolution and pooling in forms that stay fast when many clients run at once.

Under `torch.func.vmap` over clients every client has weights of its own, and a convolution can be computed in two ways:

direct  `F.conv2d`, which becomes one grouped convolution with the clients as groups; cuDNN is slow at that
kernel  the kernel offered as "conv_stack", on a GPU
auto    kernel for clients batched on a GPU, direct otherwise

They give the same values and gradients up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from motley.core.acceleration import kernel_for
from motley.core.errors import InputError
from motley.core.vmapped import is_vmapped

FORMULATIONS = ("auto", "direct", "kernel")
_formulation: ContextVar[str] = ContextVar("conv_formulation", default="auto")


class Sizes(NamedTuple):
    """What a block does beside its convolution."""

    padding: int
    pool: bool
    slope: float


class Stack(NamedTuple):
    """Blocks one after the other; planar: the result is flattened next."""

    blocks: tuple[Sizes, ...]
    planar: bool = False


@contextmanager
def conv_formulation(name: str) -> Iterator[None]:
    """Chooses how convolutions are computed inside the block: ``direct``, ``kernel`` or ``auto`` (the default)."""
    if name not in FORMULATIONS:
        raise InputError(f"There is no convolution formulation '{name}'; choose one of {', '.join(FORMULATIONS)}.")
    token = _formulation.set(name)
    try:
        yield
    finally:
        _formulation.reset(token)


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` (same arguments, weights and initialisation), computed as `conv_formulation` says.

    The kernels take stride 1, square kernels and zero padding; everything else runs as `F.conv2d`.
    """

    def forward(self, input: Tensor) -> Tensor:
        return (
            _stacked([self], input, Stack((self._sizes(False, 1.0),)))
            if self.takes_kernel(input)
            else super().forward(input)
        )

    def _sizes(self, pool: bool, slope: float) -> Sizes:
        return Sizes(int(self.padding[0]), pool, slope)

    def takes_kernel(self, input: Tensor) -> bool:
        name = _formulation.get()
        return name != "direct" and self._fits(input) and (name == "kernel" or is_vmapped(self.weight))

    def _fits(self, input: Tensor) -> bool:
        square = self.kernel_size[0] == self.kernel_size[1] and self.padding_mode == "zeros"
        plain = self.stride == (1, 1) and self.dilation == (1, 1) and self.groups == 1 and input.dim() == 4
        padded = self.padding in ((0, 0), (1, 1), (2, 2)) and int(self.padding[0]) < self.kernel_size[0]
        return square and plain and padded and kernel_for("conv_stack", input) is not None


def conv_blocks(layers: Sequence[Conv2d], x: Tensor, pools: Sequence[bool], slope: float) -> Tensor:
    """Convolutions one after the other, 2 x 2 max-pooling after those that ``pools`` says, each with a leaky ReLU."""
    if all(layer.takes_kernel(x) for layer in layers):
        sizes = tuple(layer._sizes(pool, slope) for layer, pool in zip(layers, pools, strict=True))
        return _stacked(layers, x, Stack(sizes, planar=True))
    for layer, pool in zip(layers, pools, strict=True):
        x = layer(x)  # called, so that hooks see it
        # Pooling before the activation, which keeps the order of values, is the same on a quarter of them.
        x = activation(max_pool(x) if pool else x, slope)
    return x


def activation(x: Tensor, slope: float) -> Tensor:
    """Leaky ReLU; without a slope plain ReLU, which is quicker."""
    return F.leaky_relu(x, slope) if slope else F.relu(x)


def _stacked(layers: Sequence[Conv2d], x: Tensor, stack: Stack) -> Tensor:
    tensors = [tensor for layer in layers for tensor in (layer.weight, layer.bias)]
    run = kernel_for("conv_stack", x)
    assert run is not None
    found: Tensor = run(x, stack, *tensors)
    return found


def max_pool(x: Tensor) -> Tensor:
    """Largest of every 2 x 2 square: [..., H, W] -> [..., H // 2, W // 2].

    The value and the gradient are those of ``F.max_pool2d(x, 2)``, also among equals: the first in reading order wins.
    (`amax` and `torch.maximum` share the gradient among equals, which are frequent after ReLU.) Under vmap(grad) on a
    CPU it takes 0.6 of the time of `F.max_pool2d`, and `amax` 1.3. A NaN beside a number may lose against it.
    With ``direct`` and one client alone it is `F.max_pool2d`.
    """
    if _formulation.get() == "direct" and not is_vmapped(x):
        return F.max_pool2d(x, 2)
    height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    best = x[..., 0:height:2, 0:width:2]
    for i, j in ((0, 1), (1, 0), (1, 1)):
        other = x[..., i:height:2, j:width:2]
        best = torch.where(other > best, other, best)
    return best
