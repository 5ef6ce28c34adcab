"""Server kernels in Triton, for a GPU: one pass over the updates each. Imported only where they run.

Distances of pairs are a product of matrices, and for the largest entries torch has a radix selection: both are left
to it.
"""

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def _add_row(total_ptr, row_ptr, weight_ptr, n, BLOCK: tl.constexpr):
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held = p < n
    total = tl.load(total_ptr + p, held) + tl.load(weight_ptr) * tl.load(row_ptr + p, held)
    tl.store(total_ptr + p, total, held)


def streaming_mean(rows, weights):
    n = rows.shape[1]
    total = torch.zeros_like(rows[0])
    for k in range(len(rows)):
        _add_row[(triton.cdiv(n, BLOCK),)](total, rows[k], weights[k:], n, BLOCK)
    return total


@triton.jit
def _weighted(
    rows_ptr, weights_ptr, start_ptr, out_ptr, n, ROWS: tl.constexpr, BLOCK: tl.constexpr, STARTED: tl.constexpr
):
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held = p < n
    total = tl.zeros((BLOCK,), tl.float32)
    if STARTED:
        total += tl.load(start_ptr + p, held, 0.0)
    row = rows_ptr + p
    for k in range(ROWS):
        total += tl.load(weights_ptr + k) * tl.load(row, held, 0).to(tl.float32)
        row += n
    tl.store(out_ptr + p, total, held)


def _sum(rows, weights, start=None):
    n = rows.shape[1]
    out = torch.empty(n, dtype=torch.float32, device=rows.device)
    given = out if start is None else start
    _weighted[(triton.cdiv(n, BLOCK),)](rows, weights, given, out, n, len(rows), BLOCK, start is not None)
    return out


def batched_mean(rows, weights):
    return _sum(rows, weights)


def dequantise_add(total, codes, scales):
    return _sum(codes, scales, total)


@triton.jit
def _layers(rows_ptr, shares_ptr, layer_ptr, out_ptr, n, n_layers, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held = p < n
    shares = shares_ptr + tl.load(layer_ptr + p, held, 0)
    row = rows_ptr + p
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(ROWS):
        share = tl.load(shares, held, 0.0)
        total += share * tl.load(row, held & (share != 0), 0.0)
        shares += n_layers
        row += n
    tl.store(out_ptr + p, total, held)


def masked_mean(rows, weights, trained, bounds):
    share = weights[:, None] * trained
    total = share.sum(0)
    share = torch.where(total > 0, share / total.clamp_min(torch.finfo(torch.float32).tiny), 0.0)
    n = rows.shape[1]
    layer = torch.bucketize(torch.arange(n, device=rows.device), bounds[1:], right=True).to(torch.int32)
    out = torch.empty_like(rows[0])
    _layers[(triton.cdiv(n, BLOCK),)](rows, share, layer, out, n, share.shape[1], len(rows), BLOCK)
    return out


@triton.jit
def _middle(rows_ptr, out_ptr, n_rows, n, low, high, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Columns [COLUMNS, ROWS] are sorted in registers; what is beyond the last row counts as infinite."""
    p = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, ROWS)
    held = (p < n)[:, None] & (k < n_rows)[None, :]
    place = k[None, :].to(tl.int64) * n + p[:, None]
    ordered = tl.sort(tl.load(rows_ptr + place, held, float("inf")), 1)
    counts = (k >= low) & (k < high)
    total = tl.sum(tl.where(counts[None, :], ordered, 0.0), 1)
    tl.store(out_ptr + p, total / (high - low), p < n)


def _middle_mean(rows, low, high):
    n_rows, n = rows.shape
    out = torch.empty_like(rows[0])
    wide = triton.next_power_of_2(n_rows)
    columns = max(8, 2048 // wide)
    _middle[(triton.cdiv(n, columns),)](rows, out, n_rows, n, low, high, wide, columns)
    return out


def trimmed_mean(rows, trim):
    return _middle_mean(rows, trim, len(rows) - trim)


def median(rows):
    return _middle_mean(rows, (len(rows) - 1) // 2, len(rows) // 2 + 1)


@triton.jit
def _squares(rows_ptr, out_ptr, n, n_blocks, BLOCK: tl.constexpr):
    k, block = tl.program_id(0), tl.program_id(1)
    p = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(rows_ptr + k.to(tl.int64) * n + p, p < n, 0.0)
    tl.store(out_ptr + k * n_blocks + block, tl.sum(value * value))


def clip_sum(rows, limit):
    n_rows, n = rows.shape
    n_blocks = triton.cdiv(n, 4 * BLOCK)
    squares = torch.empty(n_rows, n_blocks, dtype=torch.float32, device=rows.device)
    _squares[(n_rows, n_blocks)](rows, squares, n, n_blocks, 4 * BLOCK)
    return _sum(rows, (limit * squares.sum(1).rsqrt()).clamp_max(1.0))
