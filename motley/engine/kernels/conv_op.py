"""Convolution blocks of many clients at once, each with weights of its own, as Triton kernels.

A block is a convolution with its bias, 2 x 2 max-pooling where asked, and a leaky ReLU (``slope``; 1 is none). Forwards
it is one kernel, which never writes the unfolded image or the output before pooling. A grouped convolution in cuDNN
runs clients one after the other; these kernels run them side by side. Stride is 1, padding is with zeros.

Blocks that follow each other are one operation, a stack, because of how numbers are kept between them. Where torch is
set to exact float32 they are float32, and products keep its accuracy (three TF32 products each). Where torch may take
products as TF32, images, weights and gradients are float16, which has as many digits as TF32 and half the bytes;
gradients are multiplied by a power of two so that small ones are kept (see `conv_layout_kernels`). Sums are
float32 in either case, and so is what a stack takes and gives.

The operations take and give images as [K, B, H, W, C]; a stack whose result is flattened next gives it as
[K, B, C, H, W] (``planar``), so that nothing is copied in between.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from motley.core.acceleration import Kernel, Once, by_client, front, offer, product_precision, usable
from motley.nets.conv import Sizes, Stack


@torch.library.custom_op("motley::conv_arrange", mutates_args=())
def conv_arrange(weight: Tensor, channels: int, outputs: int, half: bool) -> tuple[Tensor, Tensor]:
    """Weights [K, O, C, R, R], contiguous for each client, as [K, O, R, R, channels], and turned by 180 degrees as
    [K, C, R, R, outputs], which the gradient of the input takes; zero where there is more room than numbers."""
    from motley.engine.kernels import conv_layout_kernels

    return conv_layout_kernels.arrange(weight, channels, outputs, half)


@conv_arrange.register_fake
def _(weight: Tensor, channels: int, outputs: int, half: bool) -> tuple[Tensor, Tensor]:
    k, o, c, rows, _ = weight.shape
    dtype = _dtype(half)
    kernel = weight.new_empty(k, o, rows, rows, channels, dtype=dtype)
    return kernel, weight.new_empty(k, c, rows, rows, outputs, dtype=dtype)


@torch.library.custom_op("motley::conv_cast", mutates_args=())
def conv_cast(x: Tensor, channels: int) -> Tensor:
    """Images [..., C] as float16 with room for ``channels``."""
    from motley.engine.kernels import conv_layout_kernels

    return conv_layout_kernels.cast(x, channels)


@conv_cast.register_fake
def _(x: Tensor, channels: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], channels, dtype=torch.float16)


@torch.library.custom_op("motley::conv_block", mutates_args=())
def conv_block(
    x: Tensor, weight: Tensor, bias: Tensor | None, maxima: Tensor | None, padding: int, pool: bool, slope: float,
    planar: bool, room: int, half: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Every client's block: x [K, B, H, W, C], weight [K, O, R, R, C], bias [K, O] -> y [K, B, H', W', room].

    A client's weights are contiguous, or a view of some that lie as [O, C, R, R]. With ``planar`` the result is
    [K, B, room, H', W'], with ``half`` it is float16, with ``maxima`` it is divided by the factor of a gradient. The
    second result says which of the four pixels was the largest, the first of equals (0 to 3, uint8).
    """
    from motley.engine.kernels import conv_kernels

    return conv_kernels.forward(x, weight, bias, maxima, padding, pool, slope, planar, room, half)


@conv_block.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, maxima: Tensor | None, padding: int, pool: bool, slope: float,
    planar: bool, room: int, half: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from motley.engine.kernels.conv_kernels import block_results

    return block_results(x, weight.shape[2], padding, pool, planar, room, half)


@torch.library.custom_op("motley::conv_largest", mutates_args=())
def conv_largest(grad: Tensor) -> Tensor:
    """The largest absolute values of each client's gradient, of some parts of it: what its factor is taken from."""
    from motley.engine.kernels import conv_layout_kernels

    return conv_layout_kernels.largest(grad)


@conv_largest.register_fake
def _(grad: Tensor) -> Tensor:
    from motley.engine.kernels.conv_layout_kernels import PARTS

    return grad.new_empty(len(grad), PARTS.value)


@torch.library.custom_op("motley::conv_spread", mutates_args=())
def conv_spread(
    grad: Tensor, y: Tensor, which: Tensor, maxima: Tensor | None, height: int, width: int, pool: bool, slope: float,
    planar: bool, outputs: int, room: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """From a block's gradient and its output to the gradient before activation and pooling [K, B, height, width, room],
    and to that of the biases in parts [K, S, outputs], whose sum it is.

    With ``maxima`` the result is float16 times the client's factor, as ``grad`` is already if it is float16.
    """
    from motley.engine.kernels import conv_layout_kernels

    return conv_layout_kernels.spread(grad, y, which, maxima, height, width, pool, slope, planar, outputs, room)


@conv_spread.register_fake
def _(
    grad: Tensor, y: Tensor, which: Tensor, maxima: Tensor | None, height: int, width: int, pool: bool, slope: float,
    planar: bool, outputs: int, room: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from motley.engine.kernels.conv_layout_kernels import spread_parts

    k, b = grad.shape[:2]
    out = grad.new_empty(k, b, height, width, room, dtype=_dtype(maxima is not None))
    return out, y.new_empty(k, spread_parts(b, height, width, pool), outputs, dtype=torch.float32)


@torch.library.custom_op("motley::conv_weight", mutates_args=())
def conv_weight(
    x: Tensor, grad: Tensor, maxima: Tensor | None, channels: int, outputs: int, rows: int, padding: int, per_split: int
) -> Tensor:
    """The gradient of every client's weights [outputs, channels, rows, rows].

    It comes in parts, [S, K, ...], from ``per_split`` pixels each; their sum is the gradient.
    """
    from motley.engine.kernels import conv_kernels

    return conv_kernels.weight_gradient(x, grad, maxima, channels, outputs, rows, padding, per_split)


@conv_weight.register_fake
def _(
    x: Tensor, grad: Tensor, maxima: Tensor | None, channels: int, outputs: int, rows: int, padding: int, per_split: int
) -> Tensor:
    splits = -(-grad[0, ..., 0].numel() // per_split)
    return x.new_empty(splits, x.shape[0], outputs * channels * rows * rows, dtype=torch.float32)


READ_AS_THEY_LIE = 80  # taps per output up to which float32 weights are so few that their order does not matter


def _dtype(half: bool) -> torch.dtype:
    return torch.float16 if half else torch.float32


def _last(images: Tensor) -> Tensor:
    """[K, B, C, H, W] with channels last in memory and in shape; nothing is copied where they lie so already."""
    return images.permute(0, 1, 3, 4, 2).contiguous()


def _second(images: Tensor) -> Tensor:
    """Back to the shape [K, B, C, H, W]."""
    return images.permute(0, 1, 4, 2, 3)


def _room(channels: int, half: bool) -> int:
    """Channels that images have room for: in float16 as many as can be read at once."""
    if not half or channels == 1:
        return channels
    return 4 if channels <= 4 else -(-channels // 8) * 8


def _arranged(weight: Tensor, half: bool) -> tuple[Tensor, Tensor]:
    """Weights as the forward pass takes them, and turned, as the gradient of the input does."""
    outputs, channels = weight.shape[1:3]
    if not half and weight[0, 0].numel() <= READ_AS_THEY_LIE:
        return weight.permute(0, 1, 3, 4, 2), weight.new_empty(len(weight), 0)
    return conv_arrange(weight, _room(channels, half), _room(outputs, half), half)


Pairs = list[tuple[Tensor, Tensor | None]]  # weights [K, O, C, R, R] and biases [K, O] of each block


def forwards(x: Tensor, stack: Stack, pairs: Pairs) -> tuple[Tensor, ...]:
    """The stack's result, and what `backwards` needs: what blocks took, which pixels won, weights turned."""
    half = product_precision() == "tf32"
    image = conv_cast(_last(x), _room(x.shape[2], True)) if half else _last(x)
    images, winners, turned = [], [], []
    for i, (sizes, (weight, bias)) in enumerate(zip(stack.blocks, pairs, strict=True)):
        top = i == len(pairs) - 1
        kernel, back = _arranged(by_client(weight), half)
        images.append(image if half or i else x.new_empty(len(x), 0))  # float32 images can be had from x again
        room = weight.shape[1] if top else _room(weight.shape[1], half)
        image, which = conv_block(
            image, kernel, None if bias is None else by_client(bias), None, *sizes, stack.planar and top, room,
            half and not top,
        )  # fmt: skip
        winners.append(which)
        turned.append(back)
    return image if stack.planar else _second(image), *images, *winners, *turned


def backwards(
    grad: Tensor, y: Tensor, x: Tensor, stack: Stack, low: int, to_x: bool, weights: list[Tensor], kept: list[Tensor]
) -> tuple[Tensor, ...]:
    """The gradients of x (empty where nobody asks for it), and of weights and biases of the blocks from ``low`` on."""
    n = len(weights)
    images, winners, turned = kept[:n], kept[n : 2 * n], kept[2 * n :]
    half = images[0].dtype == torch.float16
    images = [images[0] if half else _last(x), *images[1:]]
    grad, y = (grad.contiguous(), y) if stack.planar else (_last(grad), _last(y))
    maxima = conv_largest(grad) if half else None
    found: list[Tensor] = []
    for i in range(n - 1, low - 1, -1):
        sizes, weight, image = stack.blocks[i], weights[i], images[i]
        planar = stack.planar and i == n - 1
        grad, biases = _before_activation(grad, y, winners[i], maxima, image, weight, sizes, planar)
        found = [_to_weight(grad, image, weight, maxima, sizes.padding), biases.sum(1), *found]
        if i > low or (i == 0 and to_x):
            grad = _to_image(grad, image, weight, turned[i], maxima, sizes.padding, inner=i > 0)
        y = image
    return _second(grad) if to_x else grad.new_empty(len(grad), 0), *found


def _before_activation(
    grad: Tensor, y: Tensor, which: Tensor, maxima: Tensor | None, image: Tensor, weight: Tensor, sizes: Sizes,
    planar: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradient of a block's convolution, and of its biases in parts, from that of its result."""
    outputs, rows, half = weight.shape[1], weight.shape[3], maxima is not None
    height, width = (length + 2 * sizes.padding - rows + 1 for length in image.shape[2:4])
    return conv_spread(
        grad, y, which, maxima, height, width, sizes.pool, sizes.slope, planar, outputs, _room(outputs, half)
    )


def _to_weight(grad: Tensor, image: Tensor, weight: Tensor, maxima: Tensor | None, padding: int) -> Tensor:
    """The gradient of a block's weights, from that of its convolution and from what it took."""
    from motley.engine.kernels.conv_kernels import weight_split

    k, outputs, channels, rows, _ = weight.shape
    pixels, taps = grad.shape[1:4].numel(), image.shape[4] * rows * rows
    per_split = weight_split(k, pixels, outputs, taps, maxima is not None)
    parts = conv_weight(image, grad, maxima, channels, outputs, rows, padding, per_split)
    return (parts[0] if len(parts) == 1 else parts.sum(0)).view(weight.shape)


def _to_image(
    grad: Tensor, image: Tensor, weight: Tensor, turned: Tensor, maxima: Tensor | None, padding: int, inner: bool
) -> Tensor:
    """The gradient of what a block took, from that of its convolution.

    Within a stack (``inner``) it has as much room as what the block took, and stays multiplied by its factor.
    """
    back = turned if turned.numel() else weight.flip(-1, -2).permute(0, 2, 3, 4, 1).contiguous()
    around = weight.shape[3] - 1 - padding
    room = image.shape[4] if inner else weight.shape[2]
    scaled = inner and maxima is not None
    found, _ = conv_block(grad, back, None, None if scaled else maxima, around, False, 1.0, False, room, scaled)
    return found


class _StackGradient(Once):
    """The backward pass of a stack: it has a rule for `vmap` and no derivative of its own."""

    @staticmethod
    def forward(stack: Stack, low: int, to_x: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(one[0] for one in _sorted_out(stack, low, to_x, [one[None] for one in tensors]))

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, stack: Stack, low: int, to_x: bool, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        stacked = [front(one, dim, info.batch_size) for one, dim in zip(tensors, in_dims[3:], strict=True)]
        found = _sorted_out(stack, low, to_x, stacked)
        return found, (0,) * len(found)


def _sorted_out(stack: Stack, low: int, to_x: bool, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    grad, y, x, *rest = tensors
    n = len(stack.blocks)
    return backwards(grad, y, x, stack, low, to_x, rest[:n], rest[n:])


class ConvStack(torch.autograd.Function):
    """Convolutions with bias, pooling and leaky ReLU of one client [B, C, H, W], with a fast rule for `vmap`.

    ``ConvStack.apply(x, stack, weight, bias, weight, bias, ...)[0]``; a bias may be None.
    """

    @staticmethod
    def forward(x: Tensor, stack: Stack, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        alone = [None if one is None else one[None] for one in tensors]
        return tuple(one[0] for one in forwards(x[None], stack, _pairs(alone)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.stack, *tensors = inputs
        y, *kept = output
        ctx.mark_non_differentiable(*kept)
        ctx.biased = [bias is not None for bias in tensors[1::2]]
        ctx.save_for_backward(y, x, *tensors[::2], *kept)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        to_x, _, *asked = ctx.needs_input_grad
        low = 0 if to_x else next(i for i, wanted in enumerate(asked) if wanted) // 2
        to_input, *found = _StackGradient.apply(ctx.stack, low, bool(to_x), grads[0], *ctx.saved_tensors)
        given: list[Tensor | None] = [None] * (2 * low) + found
        for i, biased in enumerate(ctx.biased):
            given[2 * i + 1] = given[2 * i + 1] if biased else None
        return to_input if to_x else None, None, *given

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, stack: Stack, *tensors: Tensor | None
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        size = info.batch_size
        stacked = [
            None if one is None else front(one, dim, size) for one, dim in zip(tensors, in_dims[2:], strict=True)
        ]
        found = forwards(front(x, in_dims[0], size), stack, _pairs(stacked))
        return found, (0,) * len(found)


def _pairs(tensors: list[Tensor | None]) -> Pairs:
    return list(zip(tensors[::2], tensors[1::2], strict=True))  # type: ignore[arg-type]


def _run(x: Tensor, stack: Stack, *tensors: Tensor | None) -> Tensor:
    return cast(tuple[Tensor, ...], ConvStack.apply(x, stack, *tensors))[0]


offer("conv_stack", Kernel(usable, _run, "convolutions of stride 1 with pooling and ReLU, any problem, on a GPU"))
