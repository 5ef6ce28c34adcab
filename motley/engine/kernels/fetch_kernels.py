"""The Triton kernels behind `motley.engine.kernels.fetch_op`; imported only where they run."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from motley.client import augment
from motley.engine.kernels.draws_kernels import bits, fold_in

WORD = tl.constexpr(augment.WORD)


@triton.jit
def _traced_back(at, key, b, H: tl.constexpr, W: tl.constexpr, MOVES: tl.constexpr):
    """Where the pixels ``at`` of the b-th image [C, H, W] stood before all changes, and whether inside the image.

    From the last change back to the first, with what `augment.Augment` draws from this key of a step.
    """
    row = at // W % H
    column = at % W
    inside = at >= 0
    for i in tl.static_range(len(MOVES) - 1, -1, -1):
        drawn = bits(fold_in(key, i), b)
        if MOVES[i] == 0:
            column = tl.where((drawn & 1) == 1, W - 1 - column, column)
        else:
            row += (drawn & 0xFFFF).to(tl.int32) % (2 * MOVES[i] + 1) - MOVES[i]
            column += ((drawn >> 16) & 0xFFFF).to(tl.int32) % (2 * MOVES[i] + 1) - MOVES[i]
            inside &= (row >= 0) & (row < H) & (column >= 0) & (column < W)
    return at // (H * W) * (H * W) + row * W + column, inside


@triton.jit
def _fetch_kernel(
    x, y, rows, mask, number, lr, steps, per_epoch, keys, black, samples, labels, share, rate, epoch,
    B: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr, W: tl.constexpr, MOVES: tl.constexpr,
    MASKED: tl.constexpr, BB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program copies a piece of one sample, from [C, pixels] to [pixels, C]; the first ones do the rest as well.

    Images are changed on the way by MOVES: the padding of a crop, 0 for a mirror.
    """
    sample = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + sample)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = i
    if C > 1:
        at = i % C * (D // C) + i // C
    found = i < D
    fill = 0.0
    if len(MOVES) > 0:
        key = fold_in(tl.load(keys + tl.program_id(0) // B).to(tl.uint64, bitcast=True), WORD)
        channel = at // (H * W)
        at, inside = _traced_back(at, fold_in(key, tl.load(number)), tl.program_id(0) % B, H, W, MOVES)
        fill = tl.load(black + channel, mask=found & ~inside, other=0.0)
        found &= inside
    tl.store(samples + sample * D + i, tl.load(x + row * D + at, mask=found, other=fill), mask=i < D)
    if tl.program_id(1) == 0:
        tl.store(labels + sample, tl.load(y + row))
        if sample % B == 0:
            client = sample // B
            step = tl.load(number)
            wanted = tl.load(lr + client)
            tl.store(rate + client, tl.where(step < tl.load(steps + client), wanted, 0.0))
            tl.store(epoch + client, (step // tl.load(per_epoch + client)).to(tl.float32))
            if MASKED:
                b = tl.arange(0, BB)
                given = tl.load(mask + sample + b, mask=b < B, other=0.0)
                count = tl.sum(given, 0)
                tl.store(share + sample + b, given / tl.maximum(count, 1.0), mask=b < B)


@triton.jit
def _record_kernel(losses, number, loss, K, ROW, BLOCK: tl.constexpr):
    """losses[number, k] = loss[k], then number + 1."""
    step = tl.load(number)
    k = tl.arange(0, BLOCK)
    tl.store(losses + step * ROW + k, tl.load(loss + k, mask=k < K, other=0.0), mask=k < K)
    tl.debug_barrier()
    tl.store(number, step + 1)


def fetch(
    x: Tensor, y: Tensor, rows: Tensor, mask: Tensor | None, number: Tensor, lr: Tensor, steps: Tensor,
    per_epoch: Tensor, keys: Tensor, black: Tensor | None, channels: int, moves: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """See `fetch_op.fetch`."""
    (k, batch), size = rows.shape, x[0].numel()
    rows, mask = rows.contiguous(), None if mask is None else mask.contiguous()
    samples = torch.empty(k, batch, size, device=x.device)
    labels = torch.empty(k, batch, dtype=y.dtype, device=x.device)
    share = torch.empty((k, batch) if mask is not None else (0,), device=x.device)
    rate, epoch = torch.empty(k, device=x.device), torch.empty(k, device=x.device)
    block = min(1024, triton.next_power_of_2(size))
    height, width = x.shape[2:] if moves else (1, 1)
    _fetch_kernel[(k * batch, triton.cdiv(size, block))](
        x, y, rows, samples if mask is None else mask, number, lr, steps, per_epoch,
        keys, samples if black is None else black, samples, labels, share, rate, epoch,
        B=batch, C=channels, D=size, H=height, W=width, MOVES=tuple(moves), MASKED=mask is not None,
        BB=triton.next_power_of_2(batch), BLOCK=block, num_warps=2 if moves else 4,  # each warp draws for itself
    )  # fmt: skip
    return samples, labels, share, rate, epoch


def record(losses: Tensor, number: Tensor, loss: Tensor) -> None:
    """See `fetch_op.record_`."""
    k = len(loss)
    _record_kernel[(1,)](losses, number, loss, k, losses.stride(0), BLOCK=triton.next_power_of_2(k), num_warps=4)
