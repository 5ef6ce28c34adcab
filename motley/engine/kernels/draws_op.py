"""The minibatch table of `tables.Batches` by two kernels and a sort, where the plain way takes sixty operations."""

from __future__ import annotations

import torch
from torch import Tensor

from motley.engine.batched.minibatches import Counts, Table


def table(
    keys: Tensor, index: Tensor, offsets: Tensor, sizes: Tensor, steps: Tensor, batch_size: int, counts: Counts
) -> Table:
    """All minibatches of K clients: as ``Batches(...).table(0, most steps, K)``."""
    import triton

    from motley.engine.kernels.draws_kernels import draw, lookup

    k, total, widest = len(keys), max(counts.steps), max(counts.samples)
    per_epoch = [-(-n // batch_size) for n in counts.samples]
    epochs = max(max(1, -(-count // each)) for count, each in zip(counts.steps, per_epoch, strict=True))
    drawn = torch.empty(k, epochs, widest, dtype=torch.int64, device=keys.device)
    draw[(triton.cdiv(widest, 256), epochs, k)](keys, sizes, drawn, widest, epochs, BLOCK=256, num_warps=4)
    order = torch.argsort(drawn, dim=-1, stable=True)
    rows = torch.empty(total, k, batch_size, dtype=torch.int64, device=keys.device)
    masked = any(n % batch_size for n in counts.samples)
    mask = torch.empty(rows.shape, device=keys.device) if masked else None
    lookup[(triton.cdiv(total * batch_size, 256), k)](
        order, index, offsets, sizes, steps, rows, rows if mask is None else mask, k, widest, epochs, total,
        B=batch_size, MASKED=masked, BLOCK=256, num_warps=4,
    )  # fmt: skip
    return Table(rows, mask)
