"""The Triton kernel behind `motley.run.executors.fused`; imported only where it runs."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def descend(
    x, y, rows, mask, models, steps, lr, losses,
    K, D: tl.constexpr, C: tl.constexpr, B: tl.constexpr, DECAY: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """All steps of one client."""
    client = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BD)
    c = tl.arange(0, BC)
    b = tl.arange(0, BB)
    models += client * (C * D + C)
    held = (c[:, None] < C) & (d[None, :] < D)
    weight = tl.load(models + c[:, None] * D + d[None, :], mask=held, other=0.0)
    bias = tl.load(models + C * D + c, mask=c < C, other=0.0)
    rate = tl.load(lr + client)
    n = tl.load(steps + client)
    s = n * 0
    while s < n:
        at = (s * K + client) * B + b
        row = tl.load(rows + at, mask=b < B, other=0)
        label = tl.load(y + row)
        if MASKED:  # noqa: SIM108 (Triton)
            counts = tl.load(mask + at, mask=b < B, other=0.0)
        else:
            counts = (b < B).to(tl.float32)
        inputs = tl.load(x + row[:, None] * D + d[None, :], mask=(b[:, None] < B) & (d[None, :] < D), other=0.0)
        z = tl.dot(inputs, tl.trans(weight), input_precision=PRECISION) + bias[None, :]
        z = tl.where(c[None, :] < C, z, -1e30)
        z = z - tl.max(z, 1)[:, None]
        e = tl.exp(z)
        total = tl.sum(e, 1)
        hit = label[:, None] == c[None, :]
        size = tl.maximum(tl.sum(counts, 0), 1.0)
        loss = tl.sum(counts * (tl.log(total) - tl.sum(tl.where(hit, z, 0.0), 1)), 0) / size
        slope = (e / total[:, None] - hit.to(tl.float32)) * (counts / size)[:, None]
        to_weight = tl.dot(tl.trans(slope), inputs, input_precision=PRECISION)
        weight = weight - rate * (to_weight + DECAY * weight)
        bias = bias - rate * (tl.sum(slope, 0) + DECAY * bias)
        tl.store(losses + s * K + client, loss)
        s += 1
    tl.store(models + c[:, None] * D + d[None, :], weight, mask=held)
    tl.store(models + C * D + c, bias, mask=c < C)
