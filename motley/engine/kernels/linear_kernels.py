"""The Triton kernels behind `motley.engine.kernels.linear_op`; imported only where they run.

x [K, B, D], weight [K, O, D], grad [K, B, O]. Batches are small, so every kernel is a stream over the
weights, of which a client's begin ROW numbers after those of the one before.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward_kernel(
    x, weight, bias, partial, K, B, CO, D, ROW, BIAS_ROW, PER_SPLIT: tl.constexpr,
    BIAS: tl.constexpr, PRECISION: tl.constexpr, BO: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """partial[split, k, b, o] = sum over a split of d of x[k, b, d] * weight[k, o, d]."""
    client = tl.program_id(2).to(tl.int64)
    split = tl.program_id(0)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    b = tl.arange(0, BB)
    x += client * B * D
    weight += client * ROW
    acc = tl.zeros((BO, BB), dtype=tl.float32)
    for step in range(0, PER_SPLIT, BD):
        d = split * PER_SPLIT + step + tl.arange(0, BD)
        w = tl.load(weight + o[:, None] * D + d[None, :], mask=(o[:, None] < CO) & (d[None, :] < D), other=0.0)
        inputs = tl.load(x + b[None, :] * D + d[:, None], mask=(b[None, :] < B) & (d[:, None] < D), other=0.0)
        acc = tl.dot(w, inputs, acc, input_precision=PRECISION)
    if BIAS:
        first = (o < CO) & (split == 0)
        acc += tl.load(bias + client * BIAS_ROW + o, mask=first, other=0.0)[:, None]
    at = ((split * K + client) * B + b[None, :]) * CO + o[:, None]
    tl.store(partial + at, acc, mask=(b[None, :] < B) & (o[:, None] < CO))


@triton.jit
def _input_kernel(
    grad, weight, out, B, CO, D, ROW,
    PRECISION: tl.constexpr, BO: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr, O_MAX: tl.constexpr,
):  # fmt: skip
    """out[k, b, d] = sum over o of grad[k, b, o] * weight[k, o, d]."""
    client = tl.program_id(1).to(tl.int64)
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    b = tl.arange(0, BB)
    grad += client * B * CO
    weight += client * ROW
    acc = tl.zeros((BB, BD), dtype=tl.float32)
    for begin in range(0, O_MAX, BO):
        o = begin + tl.arange(0, BO)
        g = tl.load(grad + b[:, None] * CO + o[None, :], mask=(b[:, None] < B) & (o[None, :] < CO), other=0.0)
        w = tl.load(weight + o[:, None] * D + d[None, :], mask=(o[:, None] < CO) & (d[None, :] < D), other=0.0)
        acc = tl.dot(g, w, acc, input_precision=PRECISION)
    tl.store(out + (client * B + b[:, None]) * D + d[None, :], acc, mask=(b[:, None] < B) & (d[None, :] < D))


@triton.jit
def outer(x, grad, client, o, d, B, CO, D, PRECISION: tl.constexpr, BB: tl.constexpr):
    """A tile of the weights' gradient: sum over b of grad[k, b, o] * x[k, b, d]."""
    b = tl.arange(0, BB)
    at = (client * B + b) * CO
    g = tl.load(grad + at[None, :] + o[:, None], mask=(b[None, :] < B) & (o[:, None] < CO), other=0.0)
    at = (client * B + b) * D
    inputs = tl.load(x + at[:, None] + d[None, :], mask=(b[:, None] < B) & (d[None, :] < D), other=0.0)
    return tl.dot(g, inputs, input_precision=PRECISION)


@triton.jit
def _weight_kernel(
    x, grad, out, B, CO, D, PRECISION: tl.constexpr, BO: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr
):
    client = tl.program_id(2).to(tl.int64)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    found = outer(x, grad, client, o, d, B, CO, D, PRECISION, BB)
    tl.store(out + (client * CO + o[:, None]) * D + d[None, :], found, mask=(o[:, None] < CO) & (d[None, :] < D))


def batch_block(batch: int) -> int:
    return max(16, triton.next_power_of_2(batch))


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, precision: str) -> Tensor:
    """See `linear_op.linear_forward`."""
    bias = bias if bias is None or bias.stride(1) == 1 else bias.contiguous()
    k, batch, inputs = x.shape
    outputs = weight.shape[1]
    block, step = min(128, max(16, triton.next_power_of_2(outputs))), 64
    tiles = triton.cdiv(outputs, block)
    splits = max(1, min(triton.cdiv(1056, tiles * k), triton.cdiv(inputs, 4 * step)))
    per_split = triton.cdiv(triton.cdiv(inputs, splits), step) * step
    splits = triton.cdiv(inputs, per_split)
    partial = torch.empty(splits, k, batch, outputs, device=x.device)
    _forward_kernel[(splits, tiles, k)](
        x, weight, weight if bias is None else bias, partial, k, batch, outputs, inputs,
        weight.stride(0), 0 if bias is None else bias.stride(0), per_split,
        BIAS=bias is not None, PRECISION=precision, BO=block, BB=batch_block(batch), BD=step,
        num_warps=4, num_stages=4,
    )  # fmt: skip
    return partial[0] if splits == 1 else partial.sum(0)


def input_gradient(grad: Tensor, weight: Tensor, precision: str) -> Tensor:
    """See `linear_op.linear_input`."""
    k, batch, outputs = grad.shape
    inputs = weight.shape[2]
    out = torch.empty(k, batch, inputs, device=grad.device)
    _input_kernel[(triton.cdiv(inputs, 128), k)](
        grad, weight, out, batch, outputs, inputs, weight.stride(0),
        PRECISION=precision, BO=32, BB=batch_block(batch), BD=128, O_MAX=outputs, num_warps=4, num_stages=4,
    )  # fmt: skip
    return out


def weight_gradient(x: Tensor, grad: Tensor, precision: str) -> Tensor:
    """See `linear_op.linear_weight`."""
    k, batch, inputs = x.shape
    outputs = grad.shape[2]
    out = torch.empty(k, outputs, inputs, device=x.device)
    _weight_kernel[(triton.cdiv(inputs, 128), triton.cdiv(outputs, 64), k)](
        x, grad, out, batch, outputs, inputs, PRECISION=precision, BO=64, BB=batch_block(batch), BD=128, num_warps=4
    )
    return out
