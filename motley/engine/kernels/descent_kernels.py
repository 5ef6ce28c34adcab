"""The Triton kernel behind `motley.engine.kernels.descent_op`; imported only where it runs.

The inputs are dealt to G groups of W, and each warp multiplies the groups that are its own: a batch of products, summed
over the groups for the logits. Samples pass from registers to the tensor cores through shared memory, which is what
bounds a step, so that a warp must not read what others read as well.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _paired(t, G: tl.constexpr, M: tl.constexpr, W: tl.constexpr):
    """The last axis in another order, with which weights that a product left in registers enter the next as they are.

    Of 8 neighbours, a thread holds two adjacent ones of a product's result but two that are 4 apart of a factor.
    """
    return tl.reshape(tl.permute(tl.reshape(t, (G, M, W // 8, 4, 2)), (0, 1, 2, 4, 3)), (G, M, W))


@triton.jit
def _summed(t, G: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """The sum over the first axis, each entry by one thread (`tl.sum` would have all warps hold all entries)."""
    t = tl.permute(t, (1, 2, 0))
    for i in tl.static_range(G.bit_length() - 1):
        one, other = tl.split(tl.reshape(t, (M, N, G >> (i + 1), 2)))
        t = one + other
    return tl.reshape(t, (M, N))


@triton.jit(do_not_specialize=["K"])
def descend(
    x, labels, rows, mask, models, steps, lr, losses,
    K, D: tl.constexpr, C: tl.constexpr, B: tl.constexpr, DECAY: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr, G: tl.constexpr, W: tl.constexpr, BC: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """All steps of one client; the samples of a step are fetched during the step before."""
    client = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, G)[:, None, None] * W + tl.arange(0, W)[None, None, :]
    c = tl.arange(0, BC)
    b = tl.arange(0, BB)
    models += client * (C * D + C)
    place = c[None, :, None] * D + d
    held = (c[None, :, None] < C) & (d < D)
    weight = tl.load(models + place, mask=held, other=0.0)
    bias = tl.load(models + C * D + c[None, :], mask=c[None, :] < C, other=0.0)
    rate = tl.load(lr + client)
    n = tl.load(steps + client)
    s = n * 0
    wanted = (b[None, :, None] < B) & (d < D)
    row = tl.load(rows + client * B + b, mask=(b < B) & (s < n), other=0)
    inputs = tl.load(x + row[None, :, None] * D + d, mask=wanted, other=0.0)
    while s < n:
        at = (s * K + client) * B + b
        row = tl.load(rows + at + K * B, mask=(b < B) & (s + 1 < n), other=0)
        label = tl.load(labels + at, mask=b < B, other=0)
        if MASKED:  # noqa: SIM108 (Triton)
            counts = tl.load(mask + at, mask=b < B, other=0.0)
        else:
            counts = (b < B).to(tl.float32)
        across = tl.permute(_paired(weight, G, BC, W), (0, 2, 1))
        parts = tl.dot(_paired(inputs, G, BB, W), across, input_precision=PRECISION)
        coming = tl.load(x + row[None, :, None] * D + d, mask=wanted, other=0.0)
        z = tl.where(c[None, :] < C, _summed(parts, G, BB, BC) + bias, -1e30)
        z = z - tl.max(z, 1)[:, None]
        e = tl.exp(z)
        total = tl.sum(e, 1)[:, None]
        hit = label[:, None] == c[None, :]
        share = (counts / tl.maximum(tl.sum(counts, 0), 1.0))[:, None]
        slope = e * (share / total) - tl.where(hit, share, 0.0)
        move = tl.broadcast_to(tl.trans(slope * -rate)[None, :, :], (G, BC, BB))
        if DECAY != 0:
            weight = weight * (1 - rate * DECAY)
            bias = bias * (1 - rate * DECAY)
        weight = tl.dot(move, inputs, weight, input_precision=PRECISION)
        bias = bias - rate * tl.sum(slope, 0)[None, :]
        tl.store(losses + s * K + client, tl.sum(tl.sum(tl.where(hit, share * (tl.log(total) - z), 0.0), 0), 0))
        inputs = coming
        s += 1
    tl.store(models + place, weight, mask=held)
    tl.store(models + C * D + c[None, :], bias, mask=c[None, :] < C)
