"""The Triton kernels behind `motley.run.executors.fetch`; imported only where they run."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _fetch_kernel(
    x, y, rows, mask, number, lr, steps, per_epoch, samples, labels, share, rate, epoch,
    B: tl.constexpr, C: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr, BB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program copies a piece of one sample, from [C, pixels] to [pixels, C]; the first ones do the rest as well."""
    sample = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + sample)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = i
    if C > 1:
        at = i % C * (D // C) + i // C
    tl.store(samples + sample * D + i, tl.load(x + row * D + at, mask=i < D, other=0.0), mask=i < D)
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
    per_epoch: Tensor, channels: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """See `fetch.fetch`."""
    (k, batch), size = rows.shape, x[0].numel()
    rows, mask = rows.contiguous(), None if mask is None else mask.contiguous()
    samples = torch.empty(k, batch, size, device=x.device)
    labels = torch.empty(k, batch, dtype=y.dtype, device=x.device)
    share = torch.empty((k, batch) if mask is not None else (0,), device=x.device)
    rate, epoch = torch.empty(k, device=x.device), torch.empty(k, device=x.device)
    block = min(1024, triton.next_power_of_2(size))
    _fetch_kernel[(k * batch, triton.cdiv(size, block))](
        x, y, rows, samples if mask is None else mask, number, lr, steps, per_epoch,
        samples, labels, share, rate, epoch,
        B=batch, C=channels, D=size, MASKED=mask is not None, BB=triton.next_power_of_2(batch), BLOCK=block,
        num_warps=4,
    )  # fmt: skip
    return samples, labels, share, rate, epoch


def record(losses: Tensor, number: Tensor, loss: Tensor) -> None:
    """See `fetch.record_`."""
    k = len(loss)
    _record_kernel[(1,)](losses, number, loss, k, losses.stride(0), BLOCK=triton.next_power_of_2(k), num_warps=4)
