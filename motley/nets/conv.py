"""Convolution and pooling in forms that stay fast when many clients run at once.

Under `torch.func.vmap` over clients every client has weights of its own, and a convolution can be computed in two ways:

direct  `F.conv2d`, which becomes one grouped convolution with the clients as groups
unfold  every window of the input as a column (im2col), times the weights: one batched matrix product
auto    direct, except for clients batched on a GPU, where grouped convolutions are slow: unfold

Both give the same values and gradients up to rounding. Whole models of this package under vmap(grad) on one CPU core
(ten clients, ten images each) take 1.2 to 2.1 times as long unfolded, so a CPU never unfolds by itself; `measure`
compares the two on another machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import _functorch

from motley.core.errors import InputError

FORMULATIONS = ("auto", "direct", "unfold")
_formulation: ContextVar[str] = ContextVar("conv_formulation", default="auto")


@contextmanager
def conv_formulation(name: str) -> Iterator[None]:
    """Chooses how convolutions are computed inside the block: ``direct``, ``unfold`` or ``auto`` (the default)."""
    if name not in FORMULATIONS:
        raise InputError(f"There is no convolution formulation '{name}'; choose one of {', '.join(FORMULATIONS)}.")
    token = _formulation.set(name)
    try:
        yield
    finally:
        _formulation.reset(token)


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` (same arguments, weights and initialisation), computed as `conv_formulation` says.

    Only what a matrix product can express is unfolded; groups, other paddings than zeros and inputs without a batch
    axis always run as `F.conv2d`.
    """

    def forward(self, input: Tensor) -> Tensor:
        name = _formulation.get()
        if name == "auto":
            name = "unfold" if input.is_cuda and _batched(self.weight) else "direct"
        if name == "unfold" and self._unfolds(input):
            return self._unfolded(input)
        return super().forward(input)

    def _unfolds(self, input: Tensor) -> bool:
        plain = self.padding_mode == "zeros" and not isinstance(self.padding, str)
        return plain and self.groups == 1 and input.dim() == 4

    def _unfolded(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, O, H', W'] as [O, C k k] @ [C k k, B H' W']; the batch lies in the columns, so that the
        product over clients is one matrix product per client, not one per sample."""
        columns = F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)  # type: ignore[arg-type]
        y = self.weight.flatten(1) @ columns.transpose(0, 1).flatten(1)
        if self.bias is not None:
            y = y + self.bias.unsqueeze(1)
        height, width = (self._length(x.shape[axis + 2], axis) for axis in (0, 1))
        return y.view(self.out_channels, x.shape[0], height, width).transpose(0, 1)

    def _length(self, length: int, axis: int) -> int:
        window = self.dilation[axis] * (self.kernel_size[axis] - 1) + 1
        return (length + 2 * int(self.padding[axis]) - window) // self.stride[axis] + 1


def _batched(tensor: Tensor) -> bool:
    """True inside a `vmap` that maps over this tensor (also when a `grad` stands around or inside it)."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return False


def max_pool(x: Tensor) -> Tensor:
    """Largest of every 2 x 2 square: [..., H, W] -> [..., H // 2, W // 2].

    The value and the gradient are those of ``F.max_pool2d(x, 2)``, also among equals: the first in reading order wins.
    (`amax` and `torch.maximum` share the gradient among equals, which are frequent after ReLU.) Under vmap(grad) on a
    CPU it takes 0.6 of the time of `F.max_pool2d`, and `amax` 1.3. A NaN beside a number may lose against it.
    """
    height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    best = x[..., 0:height:2, 0:width:2]
    for i, j in ((0, 1), (1, 0), (1, 1)):
        other = x[..., i:height:2, j:width:2]
        best = torch.where(other > best, other, best)
    return best


_CASES = {"5x5 1-16": (1, 16, 5, 28), "5x5 16-32": (16, 32, 5, 12), "3x3 32-64": (32, 64, 3, 30)}


def measure(device: str = "cpu", clients: int = 10, batch: int = 10) -> list[tuple[str, float, float]]:
    """Milliseconds of vmap(grad) of single convolutions, the best of five: rows of (case, direct, unfold)."""
    rows = []
    for case, (inputs, outputs, kernel, size) in _CASES.items():
        layer = Conv2d(inputs, outputs, kernel).to(device)
        x = torch.randn(clients, batch, inputs, size, size, device=device)
        weights = layer.weight.detach().repeat(clients, 1, 1, 1, 1)
        biases = torch.zeros(clients, outputs, device=device)
        direct, unfold = (_best(layer, name, (weights, biases, x)) for name in ("direct", "unfold"))
        rows.append((case, direct * 1e3, unfold * 1e3))
    return rows


def _best(layer: Conv2d, name: str, arguments: tuple[Tensor, ...]) -> float:
    def loss(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))
        return y.square().sum()

    step = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))
    seconds = []
    with conv_formulation(name):
        for _ in range(5):
            begin = time.perf_counter()
            step(*arguments)
            if arguments[0].is_cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
    return min(seconds)
