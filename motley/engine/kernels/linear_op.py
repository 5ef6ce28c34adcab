"""Large linear layers of many clients on small batches, as Triton kernels.

Such a layer is a stream over its weights; a batched product of cuBLAS reads them at a fraction of the memory's speed.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from motley.core.acceleration import Kernel, Once, by_client, front, offer, product_precision, usable
from motley.core.vmapped import is_vmapped

LEAST_WEIGHTS, LARGEST_BATCH = 1 << 19, 64


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernels are to take the input [B, D] and the weights [O, D] of one of many clients."""
    large = weight.shape[-1] * weight.shape[-2] >= LEAST_WEIGHTS and x.dim() == 2 and len(x) <= LARGEST_BATCH
    return large and usable(x) and is_vmapped(weight)


@torch.library.custom_op("motley::linear_forward", mutates_args=())
def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None, precision: str) -> Tensor:
    """x [K, B, D], weight [K, O, D] and bias [K, O] (contiguous for each client) -> [K, B, O]."""
    from motley.engine.kernels import linear_kernels

    return linear_kernels.forward(x, weight, bias, precision)


@linear_forward.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, precision: str) -> Tensor:
    return x.new_empty(*x.shape[:2], weight.shape[1])


@torch.library.custom_op("motley::linear_input", mutates_args=())
def linear_input(grad: Tensor, weight: Tensor, precision: str) -> Tensor:
    """The gradient of the input [K, B, D] from that of the output [K, B, O]."""
    from motley.engine.kernels import linear_kernels

    return linear_kernels.input_gradient(grad, weight, precision)


@linear_input.register_fake
def _(grad: Tensor, weight: Tensor, precision: str) -> Tensor:
    return grad.new_empty(*grad.shape[:2], weight.shape[2])


@torch.library.custom_op("motley::linear_weight", mutates_args=())
def linear_weight(x: Tensor, grad: Tensor, precision: str) -> Tensor:
    """The gradient of the weights [K, O, D] from the input and the gradient of the output."""
    from motley.engine.kernels import linear_kernels

    return linear_kernels.weight_gradient(x, grad, precision)


@linear_weight.register_fake
def _(x: Tensor, grad: Tensor, precision: str) -> Tensor:
    return x.new_empty(x.shape[0], grad.shape[2], x.shape[2])


class _LinearGradient(Once):
    """The backward pass: it has a rule for `vmap` and no derivative of its own."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, grad: Tensor, to_x: bool) -> tuple[Tensor, Tensor]:
        return grad @ weight if to_x else x.new_empty(0), grad.mT @ x

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, weight: Tensor, grad: Tensor, to_x: bool
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        k, precision = info.batch_size, product_precision()
        grad = front(grad, in_dims[2], k).contiguous()
        back = linear_input(grad, by_client(front(weight, in_dims[1], k)), precision) if to_x else x.new_empty(k, 0)
        return (back, linear_weight(front(x, in_dims[0], k).contiguous(), grad, precision)), (0, 0)


class ClientLinear(torch.autograd.Function):
    """`F.linear` of one client on x [B, D], with a fast rule for `vmap`."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, bias = inputs
        ctx.biased = bias is not None
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        to_x = bool(ctx.needs_input_grad[0])
        back, to_weight = _LinearGradient.apply(x, weight, grads[0], to_x)
        return back if to_x else None, to_weight, grads[0].sum(0) if ctx.biased else None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, int]:
        k = info.batch_size
        stacked = None if bias is None else front(bias, in_dims[2], k)
        args = front(x, in_dims[0], k).contiguous(), by_client(front(weight, in_dims[1], k)), stacked
        return linear_forward(*args, product_precision()), 0


def _run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return cast(Tensor, ClientLinear.apply(x, weight, bias))


offer("linear", Kernel(fits, _run, "large linear layers on small batches, any problem, on a GPU"))
