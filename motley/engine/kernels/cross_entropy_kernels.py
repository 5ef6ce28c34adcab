"""The Triton kernel behind `motley.engine.kernels.cross_entropy_op`; imported only where it runs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _loss_kernel(logits, y, share, loss, slope, B, C, SHARED: tl.constexpr, BB: tl.constexpr, BC: tl.constexpr):
    """loss[k] = sum over b of share[k, b] * (log of the sum of exp(z) - z[y]), and its gradient by z."""
    client = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, BB)
    c = tl.arange(0, BC)
    at = (client * B + b)[:, None] * C + c[None, :]
    inside = (b < B)[:, None] & (c < C)[None, :]
    z = tl.load(logits + at, mask=inside, other=0.0)
    z = tl.where((c < C)[None, :], z, float("-inf"))
    label = tl.load(y + client * B + b, mask=b < B, other=0)
    chosen = label[:, None] == c[None, :]
    weight = tl.where(b < B, 1.0 / B, 0.0)
    if SHARED:
        weight = tl.load(share + client * B + b, mask=b < B, other=0.0)
    top = tl.max(z, 1)
    powers = tl.exp(z - top[:, None])
    total = tl.sum(powers, 1)
    picked = tl.sum(tl.where(chosen, z, 0.0), 1)
    tl.store(loss + client, tl.sum(weight * (tl.log(total) + top - picked), 0))
    found = weight[:, None] * (powers / total[:, None] - tl.where(chosen, 1.0, 0.0))
    tl.store(slope + at, found, mask=inside)


def forward(logits: Tensor, y: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
    """See `cross_entropy_op.cross_entropy`."""
    k, batch, classes = logits.shape
    loss, slope = torch.empty(k, device=logits.device), torch.empty_like(logits)
    _loss_kernel[(k,)](
        logits, y, logits if share is None else share, loss, slope, batch, classes, SHARED=share is not None,
        BB=triton.next_power_of_2(batch), BC=triton.next_power_of_2(classes), num_warps=4,
    )  # fmt: skip
    return loss, slope
