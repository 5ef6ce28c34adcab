"""The Triton kernels behind `motley.engine.kernels.draws_op`; imported only where they run."""

from __future__ import annotations

import triton
import triton.language as tl

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
MIX1 = tl.constexpr(0xBF58476D1CE4E5B9)
MIX2 = tl.constexpr(0x94D049BB133111EB)
LAST = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit
def _mix(z):
    """The finaliser of splitmix64, on uint64."""
    z = (z ^ (z >> 30)) * MIX1
    z = (z ^ (z >> 27)) * MIX2
    return z ^ (z >> 31)


@triton.jit
def fold_in(key, word):
    """`keys.fold_in`, on uint64."""
    return _mix(key ^ _mix(tl.cast(word, tl.uint64) + GOLDEN))


@triton.jit
def bits(key, counter):
    """`keys.bits`, on uint64."""
    return _mix(key + (counter + 1).to(tl.uint64) * GOLDEN)


@triton.jit(do_not_specialize=["N", "E"])
def draw(keys, sizes, drawn, N, E, BLOCK: tl.constexpr):
    """drawn[k, e, n]: 64 random bits of key k, epoch e and counter n; the largest number where n is padding."""
    client = tl.program_id(2).to(tl.int64)
    epoch = tl.program_id(1)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = fold_in(tl.load(keys + client).to(tl.uint64, bitcast=True), epoch)
    value = bits(key, n).to(tl.int64, bitcast=True)
    value = tl.where(n < tl.load(sizes + client), value, LAST)
    tl.store(drawn + (client * E + epoch) * N + n, value, mask=n < N)


@triton.jit(do_not_specialize=["K", "N", "E", "TOTAL"])
def lookup(
    order, index, offsets, sizes, steps, rows, mask, K, N, E, TOTAL,
    B: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """rows[s, k, b]: the sample that client k sees in place b of its step s."""
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    step = i // B
    b = i % B
    size = tl.load(sizes + client)
    per_epoch = (size + B - 1) // B
    passes = tl.maximum((tl.load(steps + client) + per_epoch - 1) // per_epoch, 1)
    epoch = tl.minimum(step // per_epoch, passes - 1)
    within = step % per_epoch * B + b
    real = within < size
    place = tl.load(order + (client * E + epoch) * N + tl.where(real, within, 0), mask=step < TOTAL, other=0)
    row = tl.load(index + tl.load(offsets + client) + tl.minimum(place, size - 1), mask=step < TOTAL, other=0)
    at = (step.to(tl.int64) * K + client) * B + b
    tl.store(rows + at, row, mask=step < TOTAL)
    if MASKED:
        tl.store(mask + at, real.to(tl.float32), mask=step < TOTAL)
