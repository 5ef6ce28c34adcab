"""Convolution and pooling of many clients at once, each with weights of its own, as Triton kernels.

A grouped convolution in cuDNN runs clients one after the other; these kernels run them side by side and never write the
unfolded input to memory. Numbers are float32; products are taken as ``tf32`` or, by default, as ``tf32x3`` (three TF32
products that together keep float32's accuracy).

Shapes: x [K, B, C, H, W], weight [K, O, C, R, S], y [K, B, O, H', W'] with stride 1 and zero padding.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight


@cache
def available() -> bool:
    """Whether Triton can be used here."""
    if not torch.cuda.is_available():
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


@torch.library.custom_op("motley::client_conv", mutates_args=())
def client_conv(x: Tensor, weight: Tensor, padding: int, precision: str) -> Tensor:
    """Convolution of every client."""
    from motley.nets import client_conv_kernels

    return client_conv_kernels.forward(x, weight, padding, precision)


@client_conv.register_fake
def _(x: Tensor, weight: Tensor, padding: int, precision: str) -> Tensor:
    k, b, _, h, w = x.shape
    return x.new_empty(
        k, b, weight.shape[1], h + 2 * padding - weight.shape[3] + 1, w + 2 * padding - weight.shape[4] + 1
    )


@torch.library.custom_op("motley::client_conv_input", mutates_args=())
def client_conv_input(grad: Tensor, weight: Tensor, height: int, width: int, padding: int, precision: str) -> Tensor:
    """The gradient of every client's input from its output's gradient."""
    from motley.nets import client_conv_kernels

    return client_conv_kernels.input_gradient(grad, weight, height, width, padding, precision)


@client_conv_input.register_fake
def _(grad: Tensor, weight: Tensor, height: int, width: int, padding: int, precision: str) -> Tensor:
    return grad.new_empty(grad.shape[0], grad.shape[1], weight.shape[2], height, width)


@torch.library.custom_op("motley::client_conv_weight", mutates_args=())
def client_conv_weight(x: Tensor, grad: Tensor, rows: int, columns: int, padding: int, precision: str) -> Tensor:
    """The gradient of every client's weights [K, O, C, rows, columns] from its input and its output's gradient."""
    from motley.nets import client_conv_kernels

    return client_conv_kernels.weight_gradient(x, grad, rows, columns, padding, precision)


@client_conv_weight.register_fake
def _(x: Tensor, grad: Tensor, rows: int, columns: int, padding: int, precision: str) -> Tensor:
    return x.new_empty(x.shape[0], grad.shape[2], x.shape[2], rows, columns)


def _front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """The client axis first and real."""
    moved = tensor.unsqueeze(0).expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return moved.contiguous()


class _Once(torch.autograd.Function):
    """A step of a backward pass: it has a rule for `vmap` and no derivative of its own."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "Second derivatives of batched convolutions are not available; use conv_formulation('direct')."
        )


class _InputGradient(_Once):
    @staticmethod
    def forward(grad: Tensor, weight: Tensor, padding: int, shape: tuple[int, ...]) -> Tensor:
        return conv2d_input(list(shape), weight, grad, padding=padding)

    @staticmethod
    def vmap(info: Any, in_dims: Any, grad: Tensor, weight: Tensor, padding: int, shape: Any) -> tuple[Tensor, int]:
        size = info.batch_size
        g, w = _front(grad, in_dims[0], size), _front(weight, in_dims[1], size)
        return client_conv_input(g, w, shape[-2], shape[-1], padding, _precision()), 0


class _WeightGradient(_Once):
    @staticmethod
    def forward(x: Tensor, grad: Tensor, padding: int, shape: tuple[int, ...]) -> Tensor:
        return conv2d_weight(x, list(shape), grad, padding=padding)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, grad: Tensor, padding: int, shape: Any) -> tuple[Tensor, int]:
        size = info.batch_size
        x, grad = _front(x, in_dims[0], size), _front(grad, in_dims[1], size)
        return client_conv_weight(x, grad, shape[-2], shape[-1], padding, _precision()), 0


@torch.library.custom_op("motley::pool", mutates_args=())
def pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of every 2 x 2 square [..., H, W] -> [..., H // 2, W // 2], and which one it was (0 to 3, uint8)."""
    from motley.nets import client_conv_kernels

    return client_conv_kernels.pool(x)


@pool.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.new_empty(*x.shape[:-2], x.shape[-2] // 2, x.shape[-1] // 2)
    return y, torch.empty_like(y, dtype=torch.uint8)


@torch.library.custom_op("motley::unpool", mutates_args=())
def unpool(grad: Tensor, which: Tensor, height: int, width: int) -> Tensor:
    """The gradient of `pool` with respect to its input."""
    from motley.nets import client_conv_kernels

    return client_conv_kernels.unpool(grad, which, height, width)


@unpool.register_fake
def _(grad: Tensor, which: Tensor, height: int, width: int) -> Tensor:
    return grad.new_empty(*grad.shape[:-2], height, width)


class _Unpool(_Once):
    @staticmethod
    def forward(grad: Tensor, which: Tensor, height: int, width: int) -> Tensor:
        return unpool(grad.contiguous(), which.contiguous(), height, width)

    @staticmethod
    def vmap(info: Any, in_dims: Any, grad: Tensor, which: Tensor, height: int, width: int) -> tuple[Tensor, int]:
        size = info.batch_size
        return unpool(_front(grad, in_dims[0], size), _front(which, in_dims[1], size), height, width), 0


class Pool(torch.autograd.Function):
    """`F.max_pool2d(x, 2)` as one kernel forwards and one backwards; the first of equals wins."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return pool(x.contiguous())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.size = tuple(inputs[0].shape[-2:])
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _Unpool.apply(grads[0], ctx.saved_tensors[0], *ctx.size)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return pool(_front(x, in_dims[0], info.batch_size)), (0, 0)


class ClientConv(torch.autograd.Function):
    """`F.conv2d` (stride 1, square kernel, zero padding, no bias) of one client, with a fast rule for `vmap`."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, padding: int) -> Tensor:
        return conv2d(x, weight, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        to_x = _InputGradient.apply(grad, weight, ctx.padding, tuple(x.shape)) if ctx.needs_input_grad[0] else None
        to_weight = None
        if ctx.needs_input_grad[1]:
            to_weight = _WeightGradient.apply(x, grad, ctx.padding, tuple(weight.shape))
        return to_x, to_weight, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, padding: int) -> tuple[Tensor, int]:
        size = info.batch_size
        x, weight = _front(x, in_dims[0], size), _front(weight, in_dims[1], size)
        return client_conv(x, weight, padding, _precision()), 0
