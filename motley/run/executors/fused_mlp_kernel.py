"""The Triton kernel behind `motley.run.executors.fused_mlp`; imported only where it runs.

A block of threads trains one client. Its weights lie in memory, where its own multiprocessor finds them again in the
next step; activations pass from layer to layer through ``scratch`` [K, 2, BB, BW].
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _product(
    source, row, live, weight, bias,
    INPUTS: tl.constexpr, STRIDE: tl.constexpr, OUTPUTS: tl.constexpr, BB: tl.constexpr, BO: tl.constexpr,
    BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A linear layer of the rows of ``source``: [BB, BO]."""
    o = tl.arange(0, BO)
    acc = tl.zeros((BB, BO), dtype=tl.float32)
    for begin in range(0, INPUTS, BK):
        i = begin + tl.arange(0, BK)
        there = (i < INPUTS)[None, :]
        x = tl.load(source + row[:, None] * STRIDE + i[None, :], mask=live[:, None] & there, other=0.0)
        w = tl.load(weight + o[:, None] * INPUTS + i[None, :], mask=(o < OUTPUTS)[:, None] & there, other=0.0)
        acc = tl.dot(x, tl.trans(w), acc, input_precision=PRECISION)
    return acc + tl.load(bias + o, mask=o < OUTPUTS, other=0.0)[None, :]


@triton.jit
def _moved(w, at, start, inside, rate, mu, DECAY: tl.constexpr, PULLED: tl.constexpr):
    """Weights after decay and the pull towards where they came from, before their gradient."""
    moved = w
    if DECAY != 0:
        moved = moved * (1 - rate * DECAY)
    if PULLED:
        moved -= rate * mu * (w - tl.load(start + at, mask=inside, other=0.0))
    return moved


@triton.jit
def _move_bias(
    bias, start, slope, rate, mu, N: tl.constexpr, BO: tl.constexpr, DECAY: tl.constexpr, PULLED: tl.constexpr
):
    o = tl.arange(0, BO)
    b = _moved(tl.load(bias + o, mask=o < N, other=0.0), o, start, o < N, rate, mu, DECAY, PULLED)
    tl.store(bias + o, b - rate * tl.sum(slope, 0), mask=o < N)


@triton.jit
def _entropy(z, label, share, C: tl.constexpr, BC: tl.constexpr):
    """The gradient of logits [BB, BC], and the loss."""
    c = tl.arange(0, BC)[None, :]
    z = tl.where(c < C, z, -1e30)
    z = z - tl.max(z, 1)[:, None]
    e = tl.exp(z)
    total = tl.sum(e, 1)[:, None]
    hit = label[:, None] == c
    loss = tl.sum(tl.sum(tl.where(hit, share * (tl.log(total) - z), 0.0), 0), 0)
    return e * (share / total) - tl.where(hit, share, 0.0), loss


@triton.jit
def _back(
    weight, start, above, first, rate, mu,
    H: tl.constexpr, T: tl.constexpr, DECAY: tl.constexpr, PULLED: tl.constexpr, PRECISION: tl.constexpr,
    BB: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The second layer [T, H] moves, and tells the gradient of its inputs [BB, BH] from that of its outputs."""
    b = tl.arange(0, BB)
    h = tl.arange(0, BH)
    found = tl.zeros((BB, BH), dtype=tl.float32)
    for begin in range(0, T, BM):
        t = begin + tl.arange(0, BM)
        piece = tl.load(above + b[:, None] * BW + t[None, :], mask=(t < T)[None, :], other=0.0)
        place = t[:, None] * H + h[None, :]
        inside = (t < T)[:, None] & (h < H)[None, :]
        w = tl.load(weight + place, mask=inside, other=0.0)
        found = tl.dot(piece, w, found, input_precision=PRECISION)
        w = _moved(w, place, start, inside, rate, mu, DECAY, PULLED)
        w = tl.dot(tl.trans(piece * -rate), first, w, input_precision=PRECISION)
        tl.store(weight + place, w, mask=inside)
    return found


@triton.jit
def _move_first(
    weight, start, x, row, live, slope, rate, mu,
    D: tl.constexpr, H: tl.constexpr, DECAY: tl.constexpr, PULLED: tl.constexpr, PRECISION: tl.constexpr,
    BH: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The first layer [H, D] moves by the gradient of its outputs [BB, BH]."""
    h = tl.arange(0, BH)
    across = tl.trans(slope * -rate)
    for begin in range(0, D, BM):
        i = begin + tl.arange(0, BM)
        there = (i < D)[None, :]
        inputs = tl.load(x + row[:, None] * D + i[None, :], mask=live[:, None] & there, other=0.0)
        place = h[:, None] * D + i[None, :]
        inside = (h < H)[:, None] & there
        w = tl.load(weight + place, mask=inside, other=0.0)
        w = _moved(w, place, start, inside, rate, mu, DECAY, PULLED)
        w = tl.dot(across, inputs, w, input_precision=PRECISION)
        tl.store(weight + place, w, mask=inside)


@triton.jit(do_not_specialize=["K"])
def descend(
    x, labels, rows, mask, models, starts, steps, lr, mus, losses, scratch,
    K, ROW: tl.constexpr, START_ROW: tl.constexpr, D: tl.constexpr, H: tl.constexpr, T: tl.constexpr, C: tl.constexpr,
    B: tl.constexpr, W1: tl.constexpr, B1: tl.constexpr, W2: tl.constexpr, B2: tl.constexpr, W3: tl.constexpr,
    B3: tl.constexpr, DEEP: tl.constexpr, DECAY: tl.constexpr, PULLED: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr, BB: tl.constexpr, BH: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr, BW: tl.constexpr,
    BK: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """All steps of one client: D inputs, H hidden units, T in the layer below the head (H where it is the same).

    Tensors of a model lie at W1, B1, ...; BK inputs go forwards at once, BM move at once.
    """
    client = tl.program_id(0).to(tl.int64)
    b, h = tl.arange(0, BB), tl.arange(0, BH)
    u, c = tl.arange(0, BT), tl.arange(0, BC)
    models += client * ROW
    starts += client * START_ROW
    below = scratch + client * (2 * BB * BW)
    above = below + BB * BW
    rate, mu, n = tl.load(lr + client), tl.load(mus + client), tl.load(steps + client)
    head = c[:, None] * T + u[None, :]
    in_head = (c < C)[:, None] & (u < T)[None, :]
    s = n * 0
    while s < n:
        at = (s * K + client) * B + b
        row, label = tl.load(rows + at, mask=b < B, other=0), tl.load(labels + at, mask=b < B, other=0)
        if MASKED:  # noqa: SIM108 (Triton)
            counts = tl.load(mask + at, mask=b < B, other=0.0)
        else:
            counts = (b < B).to(tl.float32)
        share = (counts / tl.maximum(tl.sum(counts, 0), 1.0))[:, None]

        first = _product(x, row, b < B, models + W1, models + B1, D, D, H, BB, BH, BK, PRECISION)
        first = tl.maximum(first, 0.0)
        top = first
        if DEEP:
            tl.store(below + b[:, None] * BW + h[None, :], first)
            tl.debug_barrier()
            top = _product(below, b, b < BB, models + W2, models + B2, H, BW, T, BB, BT, BK, PRECISION)
            top = tl.maximum(top, 0.0)
        w = tl.load(models + W3 + head, mask=in_head, other=0.0)
        z = tl.dot(top, tl.trans(w), input_precision=PRECISION)
        z = z + tl.load(models + B3 + c, mask=c < C, other=0.0)[None, :]
        slope, loss = _entropy(z, label, share, C, BC)
        tl.store(losses + s * K + client, loss)

        to_top = tl.where(top > 0, tl.dot(slope, w, input_precision=PRECISION), 0.0)
        tl.debug_barrier()
        w = _moved(w, head, starts + W3, in_head, rate, mu, DECAY, PULLED)
        w = tl.dot(tl.trans(slope * -rate), top, w, input_precision=PRECISION)
        tl.store(models + W3 + head, w, mask=in_head)
        _move_bias(models + B3, starts + B3, slope, rate, mu, C, BC, DECAY, PULLED)
        to_first = to_top
        if DEEP:
            tl.store(above + b[:, None] * BW + u[None, :], to_top)
            tl.debug_barrier()
            back = _back(
                models + W2, starts + W2, above, first, rate, mu, H, T, DECAY, PULLED, PRECISION, BB, BH, BW, BM
            )
            to_first = tl.where(first > 0, back, 0.0)
            _move_bias(models + B2, starts + B2, to_top, rate, mu, T, BT, DECAY, PULLED)
        _move_first(models + W1, starts + W1, x, row, b < B, to_first, rate, mu, D, H, DECAY, PULLED, PRECISION, BH, BM)
        _move_bias(models + B1, starts + B1, to_first, rate, mu, H, BH, DECAY, PULLED)
        tl.debug_barrier()
        s += 1
