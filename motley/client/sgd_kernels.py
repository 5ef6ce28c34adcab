"""The Triton kernels behind `motley.client.sgd`; imported only where they run."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from motley.nets.client_linear_kernels import batch_block, outer


@triton.jit
def _descend(
    models, velocity, grad, at, rate, inside, MOMENTUM, DECAY, HAS_MOMENTUM: tl.constexpr, HAS_DECAY: tl.constexpr
):
    old = tl.load(models + at, mask=inside, other=0.0)
    if HAS_DECAY:
        grad += DECAY * old
    if HAS_MOMENTUM:
        grad += MOMENTUM * tl.load(velocity + at, mask=inside, other=0.0)
        tl.store(velocity + at, grad, mask=inside)
    tl.store(models + at, old - rate * grad, mask=inside)


@triton.jit
def _plain_kernel(
    models, velocity, grad, lr, N, PARAMS_ROW, VELOCITY_ROW, GRAD_ROW, MOMENTUM, DECAY,
    HAS_MOMENTUM: tl.constexpr, HAS_DECAY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(grad + client * GRAD_ROW + i, mask=i < N, other=0.0)
    _descend(
        models + client * PARAMS_ROW, velocity + client * VELOCITY_ROW, g, i, tl.load(lr + client), i < N,
        MOMENTUM, DECAY, HAS_MOMENTUM, HAS_DECAY,
    )  # fmt: skip


@triton.jit
def _outer_kernel(
    models, velocity, x, grad, lr, B, CO, D, PARAMS_ROW, VELOCITY_ROW, MOMENTUM, DECAY,
    HAS_MOMENTUM: tl.constexpr, HAS_DECAY: tl.constexpr, PRECISION: tl.constexpr,
    BO: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    g = outer(x, grad, client, o, d, B, CO, D, PRECISION, BB)
    _descend(
        models + client * PARAMS_ROW, velocity + client * VELOCITY_ROW, g, o[:, None] * D + d[None, :],
        tl.load(lr + client), (o[:, None] < CO) & (d[None, :] < D), MOMENTUM, DECAY, HAS_MOMENTUM, HAS_DECAY,
    )  # fmt: skip


def plain(params: Tensor, velocity: Tensor | None, grad: Tensor, lr: Tensor, momentum: float, decay: float) -> None:
    """See `sgd.sgd_`."""
    k, n = params.shape
    grad = grad if grad.stride(1) == 1 else grad.contiguous()
    moving = params if velocity is None else velocity
    _plain_kernel[(triton.cdiv(n, 1024), k)](
        params, moving, grad, lr, n, params.stride(0), moving.stride(0), grad.stride(0), momentum, decay,
        HAS_MOMENTUM=velocity is not None, HAS_DECAY=decay != 0, BLOCK=1024, num_warps=4,
    )  # fmt: skip


def by_product(
    params: Tensor, velocity: Tensor | None, x: Tensor, grad: Tensor, lr: Tensor, momentum: float, decay: float,
    precision: str,
) -> None:  # fmt: skip
    """See `sgd.sgd_product_`."""
    k, batch, inputs = x.shape
    outputs = grad.shape[2]
    moving = params if velocity is None else velocity
    _outer_kernel[(triton.cdiv(inputs, 128), triton.cdiv(outputs, 16), k)](
        params, moving, x, grad, lr, batch, outputs, inputs, params.stride(0), moving.stride(0), momentum, decay,
        HAS_MOMENTUM=velocity is not None, HAS_DECAY=decay != 0, PRECISION=precision,
        BO=16, BB=batch_block(batch), BD=128, num_warps=4,
    )  # fmt: skip
