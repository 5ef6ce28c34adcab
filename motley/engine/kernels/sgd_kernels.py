"""The Triton kernels behind `motley.engine.kernels.sgd_op`; imported only where they run."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from motley.engine.kernels.linear_kernels import batch_block, outer


@triton.jit
def _descend(
    models, velocity, old, grad, at, rate, inside, MOMENTUM, DECAY,
    HAS_MOMENTUM: tl.constexpr, HAS_DECAY: tl.constexpr,
):  # fmt: skip
    """Moves ``old``, which was read from ``models + at``, along a gradient."""
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
    models += client * PARAMS_ROW
    old = tl.load(models + i, mask=i < N, other=0.0)
    _descend(
        models, velocity + client * VELOCITY_ROW, old, g, i, tl.load(lr + client), i < N,
        MOMENTUM, DECAY, HAS_MOMENTUM, HAS_DECAY,
    )  # fmt: skip


@triton.jit
def _summed(grad, part, i, inside, PARTS: tl.constexpr, ROWS: tl.constexpr):
    """A gradient that comes in parts, ``part`` numbers apart; ROWS is a power of two that covers them."""
    if PARTS == 1:
        return tl.load(grad + i, mask=inside, other=0.0)
    s = tl.arange(0, ROWS)
    at = s.to(tl.int64)[:, None] * part + i[None, :]
    return tl.sum(tl.load(grad + at, mask=(s < PARTS)[:, None] & inside[None, :], other=0.0), 0)


@triton.jit
def _pieces_kernel(
    models, velocity, grads, parts, rows, lr, PARAMS_ROW, VELOCITY_ROW, MOMENTUM, DECAY,
    STARTS: tl.constexpr, SIZES: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
    FIRSTS: tl.constexpr, HAS_MOMENTUM: tl.constexpr, HAS_DECAY: tl.constexpr,
):  # fmt: skip
    """Programs FIRSTS[j] to FIRSTS[j + 1] - 1 of a client take piece j, BLOCKS[j] numbers each."""
    client = tl.program_id(1).to(tl.int64)
    program = tl.program_id(0)
    rate = tl.load(lr + client)
    for j in tl.static_range(len(SIZES)):
        if (program >= FIRSTS[j]) & (program < FIRSTS[j + 1]):
            i = (program - FIRSTS[j]) * BLOCKS[j] + tl.arange(0, BLOCKS[j])
            g = _summed(grads[j] + client * rows[j], parts[j], i, i < SIZES[j], PARTS[j], ROWS[j])
            here = models + client * PARAMS_ROW + STARTS[j]
            old = tl.load(here + i, mask=i < SIZES[j], other=0.0)
            _descend(
                here, velocity + client * VELOCITY_ROW + STARTS[j], old, g, i, rate, i < SIZES[j],
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
    models += client * PARAMS_ROW
    at = o[:, None] * D + d[None, :]
    inside = (o[:, None] < CO) & (d[None, :] < D)
    old = tl.load(models + at, mask=inside, other=0.0)
    _descend(
        models, velocity + client * VELOCITY_ROW, old, g, at, tl.load(lr + client), inside,
        MOMENTUM, DECAY, HAS_MOMENTUM, HAS_DECAY,
    )  # fmt: skip


@triton.jit
def _outer_input_kernel(
    models, velocity, x, grad, back, lr, B, CO, D, PARAMS_ROW, VELOCITY_ROW, MOMENTUM, DECAY,
    HAS_MOMENTUM: tl.constexpr, HAS_DECAY: tl.constexpr, PRECISION: tl.constexpr,
    BO: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr, O_MAX: tl.constexpr,
):  # fmt: skip
    """As `_outer_kernel`; on the way back[k, b, d] = sum over o of grad[k, b, o] * weight[k, o, d], before it moves."""
    client = tl.program_id(1).to(tl.int64)
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    b = tl.arange(0, BB)
    models += client * PARAMS_ROW
    velocity += client * VELOCITY_ROW
    rate = tl.load(lr + client)
    there = (client * B + b) * D
    seen = (b[:, None] < B) & (d[None, :] < D)
    inputs = tl.load(x + there[:, None] + d[None, :], mask=seen, other=0.0)
    acc = tl.zeros((BB, BD), dtype=tl.float32)
    for begin in range(0, O_MAX, BO):
        o = begin + tl.arange(0, BO)
        slopes = (client * B + b) * CO
        slope = tl.load(grad + slopes[:, None] + o[None, :], mask=(b[:, None] < B) & (o[None, :] < CO), other=0.0)
        at = o[:, None] * D + d[None, :]
        inside = (o[:, None] < CO) & (d[None, :] < D)
        old = tl.load(models + at, mask=inside, other=0.0)
        acc = tl.dot(slope, old, acc, input_precision=PRECISION)
        g = tl.dot(tl.trans(slope), inputs, input_precision=PRECISION)
        _descend(models, velocity, old, g, at, rate, inside, MOMENTUM, DECAY, HAS_MOMENTUM, HAS_DECAY)
    tl.store(back + there[:, None] + d[None, :], acc, mask=seen)


def plain(params: Tensor, velocity: Tensor | None, grad: Tensor, lr: Tensor, momentum: float, decay: float) -> None:
    """See `sgd_op.sgd_`."""
    k, n = params.shape
    grad = grad if grad.stride(1) == 1 else grad.contiguous()
    moving = params if velocity is None else velocity
    _plain_kernel[(triton.cdiv(n, 1024), k)](
        params, moving, grad, lr, n, params.stride(0), moving.stride(0), grad.stride(0), momentum, decay,
        HAS_MOMENTUM=velocity is not None, HAS_DECAY=decay != 0, BLOCK=1024, num_warps=4,
    )  # fmt: skip


def _shares(grads: list[Tensor]) -> dict[str, tuple[int, ...]]:
    """How a client's programs are shared out among gradients [S, K, N]; `_pieces_kernel` says what the names mean."""
    sizes = [grad.shape[2] for grad in grads]
    parts = [len(grad) for grad in grads]
    rows = [triton.next_power_of_2(n) for n in parts]
    blocks = [max(16, min(1024, 4096 // each)) for each in rows]
    firsts = [0, *accumulate(triton.cdiv(n, block) for n, block in zip(sizes, blocks, strict=True))]
    names = ("SIZES", "PARTS", "ROWS", "BLOCKS", "FIRSTS")
    return dict(zip(names, map(tuple, (sizes, parts, rows, blocks, firsts)), strict=True))


def by_pieces(
    params: Tensor, velocity: Tensor | None, grads: list[Tensor], starts: list[int], lr: Tensor, momentum: float,
    decay: float,
) -> None:  # fmt: skip
    """See `sgd_op.sgd_pieces_`."""
    grads = [grad if grad.stride(2) == 1 else grad.contiguous() for grad in grads]
    moving = params if velocity is None else velocity
    shares = _shares(grads)
    _pieces_kernel[(shares["FIRSTS"][-1], len(params))](
        params, moving, tuple(grads), tuple(grad.stride(0) for grad in grads), tuple(grad.stride(1) for grad in grads),
        lr, params.stride(0), moving.stride(0), momentum, decay,
        STARTS=tuple(starts), HAS_MOMENTUM=velocity is not None, HAS_DECAY=decay != 0, **shares, num_warps=4,
    )  # fmt: skip


def by_product(
    params: Tensor, velocity: Tensor | None, x: Tensor, grad: Tensor, lr: Tensor, momentum: float, decay: float,
    precision: str, back: Tensor | None = None,
) -> None:  # fmt: skip
    """See `sgd_op.sgd_product_`, and `sgd_op.sgd_product_input_` for ``back``, which gets the gradient of the input."""
    (k, batch, inputs), outputs = x.shape, grad.shape[2]
    moving = params if velocity is None else velocity
    sizes = (lr, batch, outputs, inputs, params.stride(0), moving.stride(0), momentum, decay)
    settings: dict[str, Any] = {
        "HAS_MOMENTUM": velocity is not None, "HAS_DECAY": decay != 0, "PRECISION": precision,
        "BB": batch_block(batch), "BD": 128, "num_warps": 4,
    }  # fmt: skip
    tiles = triton.cdiv(inputs, settings["BD"])
    if back is None:
        _outer_kernel[(tiles, triton.cdiv(outputs, 16), k)](params, moving, x, grad, *sizes, BO=16, **settings)
    else:
        _outer_input_kernel[(tiles, k)](params, moving, x, grad, back, *sizes, BO=32, O_MAX=outputs, **settings)
