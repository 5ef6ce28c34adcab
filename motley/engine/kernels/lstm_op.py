"""LSTM layers of many clients at once, as Triton kernels: one launch per time each way.

Written from gates a time takes a dozen operations forwards and more backwards, each of them a few microseconds of work.
The input's share of the gates and the gradient of the weights are products over all times, taken by torch.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from motley.core.acceleration import Kernel, Once, by_client, front, offer, product_precision, usable
from motley.core.vmapped import is_vmapped


def fits(gates: Tensor, weight: Tensor) -> bool:
    """Whether the kernels are to take gates [B, T, 4 H] of one of many clients."""
    return usable(gates) and is_vmapped(weight)


@torch.library.custom_op("motley::lstm_forward", mutates_args=())
def lstm_forward(gates: Tensor, weight: Tensor, precision: str) -> tuple[Tensor, Tensor, Tensor]:
    """From the input's share of the gates [K, B, T, 4 H] and weights [K, 4 H, H] (contiguous for each client) to hidden
    states and cells [K, B, T, H], and the activated gates."""
    from motley.engine.kernels import lstm_kernels

    return lstm_kernels.forward(gates, weight, precision)


@lstm_forward.register_fake
def _(gates: Tensor, weight: Tensor, precision: str) -> tuple[Tensor, Tensor, Tensor]:
    shape = (*gates.shape[:3], weight.shape[2])
    return gates.new_empty(shape), gates.new_empty(shape), torch.empty_like(gates)


@torch.library.custom_op("motley::lstm_backward", mutates_args=())
def lstm_backward(grad: Tensor, weight: Tensor, cell: Tensor, acts: Tensor, precision: str) -> Tensor:
    """The gradient of the gates from that of the hidden states, both before their activation."""
    from motley.engine.kernels import lstm_kernels

    return lstm_kernels.backward(grad, weight, cell, acts, precision)


@lstm_backward.register_fake
def _(grad: Tensor, weight: Tensor, cell: Tensor, acts: Tensor, precision: str) -> Tensor:
    return torch.empty_like(acts)


def backwards(grad: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor, acts: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of gates and weights."""
    slopes = lstm_backward(grad, weight, cell, acts, product_precision())
    return slopes, slopes[:, :, 1:].flatten(1, 2).mT @ hidden[:, :, :-1].flatten(1, 2)


class _Gradient(Once):
    """The backward pass: it has a rule for `vmap` and no derivative of its own."""

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        slopes, to_weight = backwards(*(tensor[None].contiguous() for tensor in tensors))
        return slopes[0], to_weight[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, *tensors: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        grad, weight, *kept = tensors
        k = info.batch_size
        grad, *kept = (
            front(one, dim, k).contiguous() for one, dim in zip((grad, *kept), (in_dims[0], *in_dims[2:]), strict=True)
        )
        return backwards(grad, by_client(front(weight, in_dims[1], k)), *kept), (0, 0)


class ClientLSTM(torch.autograd.Function):
    """Hidden states [B, T, H] of one client from the input's share of its gates [B, T, 4 H] and its weights [4 H, H].

    ``ClientLSTM.apply(gates, weight)[0]``; with a fast rule for `vmap`.
    """

    @staticmethod
    def forward(gates: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden, cell, acts = lstm_forward(gates[None].contiguous(), weight[None].contiguous(), product_precision())
        return hidden[0], cell[0], acts[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        hidden, cell, acts = output
        ctx.mark_non_differentiable(cell, acts)
        ctx.save_for_backward(inputs[1], hidden, cell, acts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        slopes, to_weight = _Gradient.apply(grads[0], *ctx.saved_tensors)
        return slopes, to_weight

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, gates: Tensor, weight: Tensor
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
        k = info.batch_size
        given = front(gates, in_dims[0], k).contiguous(), by_client(front(weight, in_dims[1], k))
        return lstm_forward(*given, product_precision()), (0, 0, 0)


def _run(gates: Tensor, weight: Tensor) -> Tensor:
    return cast(tuple[Tensor, ...], ClientLSTM.apply(gates, weight))[0]


offer("lstm", Kernel(fits, _run, "LSTM layers, any problem, on a GPU"))
