"""Convolution blocks of many clients at once, each with weights of its own, as Triton kernels.

A block is a convolution with its bias, 2 x 2 max-pooling where asked, and a leaky ReLU (``slope``; 1 is none). Forwards
it is one kernel, which never writes the unfolded image or the output before pooling. Numbers are float32; products are
taken as ``tf32`` or, by default, as ``tf32x3`` (three TF32 products that together keep float32's accuracy).

A grouped convolution in cuDNN runs clients one after the other; these kernels run them side by side.
Stride is 1, padding is with zeros. The operations take and give images as [K, B, H, W, C]; a block whose result is
flattened next gives it as [K, B, C, H, W] (``planar``), so that nothing is copied in between.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from motley.core.kernels import Once, front, product_precision


@torch.library.custom_op("motley::conv_arrange", mutates_args=())
def conv_arrange(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [K, O, C, R, R], contiguous for each client, as [K, O, R, R, C], and turned by 180 degrees as
    [K, C, R, R, O], which the gradient of the input takes."""
    from motley.nets import client_conv_kernels

    return client_conv_kernels.arrange(weight)


@conv_arrange.register_fake
def _(weight: Tensor) -> tuple[Tensor, Tensor]:
    k, outputs, channels, rows, _ = weight.shape
    return weight.new_empty(k, outputs, rows, rows, channels), weight.new_empty(k, channels, rows, rows, outputs)


@torch.library.custom_op("motley::conv_block", mutates_args=())
def conv_block(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, pool: bool, slope: float, planar: bool, precision: str
) -> tuple[Tensor, Tensor]:
    """Every client's block: x [K, B, H, W, C], weight [K, O, R, R, C], bias [K, O] -> y [K, B, H', W', O].

    A client's weights are contiguous, or a view of some that lie as [O, C, R, R]. With ``planar`` the result is
    [K, B, O, H', W']. The second result says which of the four pixels was the largest, the first of equals (0 to 3,
    uint8).
    """
    from motley.nets import client_conv_kernels

    return client_conv_kernels.forward(x, weight, bias, padding, pool, slope, planar, precision)


@conv_block.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, pool: bool, slope: float, planar: bool, precision: str
) -> tuple[Tensor, Tensor]:
    k, b, h, w, _ = x.shape
    sizes = [length + 2 * padding - weight.shape[2] + 1 for length in (h, w)]
    sizes = [size // 2 if pool else size for size in sizes]
    outputs = weight.shape[1]
    y = x.new_empty(k, b, outputs, *sizes) if planar else x.new_empty(k, b, *sizes, outputs)
    return y, torch.empty(y.shape if pool else (0,), dtype=torch.uint8, device=x.device)


@torch.library.custom_op("motley::conv_spread", mutates_args=())
def conv_spread(
    grad: Tensor, y: Tensor, which: Tensor, height: int, width: int, pool: bool, slope: float, planar: bool
) -> Tensor:
    """From a block's gradient and its output to the gradient before activation and pooling [K, B, height, width, O]."""
    from motley.nets import client_conv_kernels

    return client_conv_kernels.spread(grad, y, which, height, width, pool, slope, planar)


@conv_spread.register_fake
def _(
    grad: Tensor, y: Tensor, which: Tensor, height: int, width: int, pool: bool, slope: float, planar: bool
) -> Tensor:
    return grad.new_empty(*grad.shape[:2], height, width, grad.shape[2 if planar else -1])


@torch.library.custom_op("motley::conv_weight", mutates_args=())
def conv_weight(x: Tensor, grad: Tensor, rows: int, padding: int, precision: str, per_split: int) -> Tensor:
    """The gradient of every client's weights [O, C, rows, rows] and biases [O], one after the other.

    It comes in parts, [S, K, ...], from ``per_split`` pixels each; their sum is the gradient.
    """
    from motley.nets import client_conv_kernels

    return client_conv_kernels.weight_gradient(x, grad, rows, padding, precision, per_split)


@conv_weight.register_fake
def _(x: Tensor, grad: Tensor, rows: int, padding: int, precision: str, per_split: int) -> Tensor:
    splits = -(-grad[0, ..., 0].numel() // per_split)
    return x.new_empty(splits, x.shape[0], grad.shape[-1] * (x.shape[-1] * rows * rows + 1))


def _last(images: Tensor) -> Tensor:
    """[K, B, C, H, W] with channels last in memory and in shape; nothing is copied where they lie so already."""
    return images.permute(0, 1, 3, 4, 2).contiguous()


def _second(images: Tensor) -> Tensor:
    """Back to the shape [K, B, C, H, W]."""
    return images.permute(0, 1, 4, 2, 3)


def _by_client(tensor: Tensor) -> Tensor:
    """A tensor [K, ...] that is contiguous for each client; clients may lie apart, as in a table of all parameters."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()


Sizes = tuple[int, bool, float, bool]  # padding, pool, slope, planar
READ_AS_THEY_LIE = 80  # taps per output up to which weights are so few that their order in memory does not matter


def forwards(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> tuple[Tensor, Tensor, Tensor]:
    """The block of x [K, B, C, H, W] with weights [K, O, C, R, R]; last, what `backwards` takes as ``turned``."""
    weight = _by_client(weight)
    if weight[0, 0].numel() <= READ_AS_THEY_LIE:
        kernel, turned = weight.permute(0, 1, 3, 4, 2), weight.new_empty(len(weight), 0)
    else:
        kernel, turned = conv_arrange(weight)
    y, which = conv_block(_last(x), kernel, None if bias is None else _by_client(bias), *sizes, product_precision())
    return y if sizes[3] else _second(y), which, turned


def backwards(
    x: Tensor, weight: Tensor, turned: Tensor, grad: Tensor, y: Tensor, which: Tensor, sizes: Sizes, to_x: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x (empty where nobody asks for it), weights and biases."""
    from motley.nets.client_conv_kernels import weight_split

    (padding, pool, slope, planar), precision = sizes, product_precision()
    k, outputs, channels, rows, _ = weight.shape
    x = _last(x)
    height, width = (length + 2 * padding - rows + 1 for length in x.shape[2:4])
    if planar:
        grad = conv_spread(grad.contiguous(), y, which, height, width, pool, slope, True)
    elif pool or slope != 1.0:
        grad = conv_spread(_last(grad), _last(y), which, height, width, pool, slope, False)
    else:
        grad = _last(grad)
    per_split = weight_split(k, x.shape[1] * height * width, outputs, channels * rows * rows)
    partial = conv_weight(x, grad, rows, padding, precision, per_split)
    both = partial[0] if len(partial) == 1 else partial.sum(0)
    to_weight, to_bias = both.split([outputs * channels * rows * rows, outputs], 1)
    to_weight = to_weight.view(weight.shape)
    if not to_x:
        return x.new_empty(k, 0), to_weight, to_bias
    if not turned.numel():
        turned = weight.flip(-1, -2).permute(0, 2, 3, 4, 1).contiguous()
    back, _ = conv_block(grad, turned, None, rows - 1 - padding, False, 1.0, False, precision)
    return _second(back), to_weight, to_bias


class _BlockGradient(Once):
    """The backward pass of a block: it has a rule for `vmap` and no derivative of its own."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, turned: Tensor, grad: Tensor, y: Tensor, which: Tensor, sizes: Sizes, to_x: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = backwards(x[None], weight[None], turned[None], grad[None], y[None], which[None], sizes, to_x)
        return found[0][0], found[1][0], found[2][0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        x, weight, turned, grad, y, which = (
            front(tensor, dim, info.batch_size) for tensor, dim in zip(args[:6], in_dims[:6], strict=True)
        )
        return backwards(x, weight, turned, grad, y, which, *args[6:]), (0, 0, 0)


class ConvBlock(torch.autograd.Function):
    """Convolution, bias, pooling and leaky ReLU of one client [B, C, H, W], with a fast rule for `vmap`."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> tuple[Tensor, Tensor, Tensor]:
        y, which, turned = forwards(x[None], weight[None], None if bias is None else bias[None], sizes)
        return y[0], which.squeeze(0) if which.dim() > 1 else which, turned[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, bias, ctx.sizes = inputs
        y, which, turned = output
        ctx.biased = bias is not None
        ctx.mark_non_differentiable(which, turned)
        ctx.save_for_backward(x, weight, turned, y, which)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        x, weight, turned, y, which = ctx.saved_tensors
        to_x = bool(ctx.needs_input_grad[0])
        found = _BlockGradient.apply(x, weight, turned, grads[0], y, which, ctx.sizes, to_x)
        return found[0] if to_x else None, found[1], found[2] if ctx.biased else None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int | None, int]]:
        size = info.batch_size
        stacked = None if bias is None else front(bias, in_dims[2], size)
        found = forwards(front(x, in_dims[0], size), front(weight, in_dims[1], size), stacked, sizes)
        return found, (0, 0 if sizes[1] else None, 0)
