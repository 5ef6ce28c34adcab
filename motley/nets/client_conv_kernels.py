"""The Triton kernels behind `motley.nets.client_conv`; imported only where they run."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward_kernel(
    x, weight, y,
    B, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    M, N_RED: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[k, o, m] = sum over (c, r, s) of weight[k, o, c, r, s] * x[k, b, c, oh + r - PAD, ow + s - PAD].

    m = (b, oh, ow), CO counts output channels.

    Pixels lie along the last axis of every tile, because that is how they lie in memory.
    """
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    b = m // (OH * OW)
    rest = m % (OH * OW)
    oh = rest // OW
    ow = rest % OW
    x += client * B * C * H * W
    weight += client * CO * C * R * S
    base = b * (C * H * W) + (oh - PAD) * W + (ow - PAD)
    acc = tl.zeros((BN, BM), dtype=tl.float32)
    for begin in range(0, N_RED, BK):
        red = begin + tl.arange(0, BK)
        c = red // (R * S)
        tap = red % (R * S)
        r = tap // S
        s = tap % S
        ih = oh[None, :] - PAD + r[:, None]
        iw = ow[None, :] - PAD + s[:, None]
        inside = (m[None, :] < M) & (red[:, None] < N_RED)
        if PAD > 0:
            inside = inside & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        a = tl.load(x + base[None, :] + (c * H * W + r * W + s)[:, None], mask=inside, other=0.0)
        at = o[:, None] * (C * R * S) + red[None, :]
        taps = tl.load(weight + at, mask=(red[None, :] < N_RED) & (o[:, None] < CO), other=0.0)
        acc = tl.dot(taps, a, acc, input_precision=PRECISION)
    out = client * B * CO * OH * OW + b[None, :] * (CO * OH * OW) + o[:, None] * (OH * OW) + rest[None, :]
    tl.store(y + out, acc, mask=(m[None, :] < M) & (o[:, None] < CO))


@triton.jit
def _column_kernel(
    weight, grad, columns,
    B, CO: tl.constexpr, P: tl.constexpr, M, N_RED: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """columns[k, (c, r, s), m] = sum over o of weight[k, o, (c, r, s)] * grad[k, b, o, p], m = (b, p)."""
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    red = tl.program_id(1) * BK + tl.arange(0, BK)
    b = m // P
    p = m % P
    weight += client * CO * N_RED
    grad += client * B * CO * P
    acc = tl.zeros((BK, BM), dtype=tl.float32)
    for begin in range(0, CO, BN):
        o = begin + tl.arange(0, BN)
        taps = tl.load(
            weight + o[None, :] * N_RED + red[:, None], mask=(red[:, None] < N_RED) & (o[None, :] < CO), other=0.0
        )
        inside = (m[None, :] < M) & (o[:, None] < CO)
        g = tl.load(grad + b[None, :] * (CO * P) + o[:, None] * P + p[None, :], mask=inside, other=0.0)
        acc = tl.dot(taps, g, acc, input_precision=PRECISION)
    at = columns + client * N_RED * M + red[:, None].to(tl.int64) * M + m[None, :]
    tl.store(at, acc, mask=(red[:, None] < N_RED) & (m[None, :] < M))


@triton.jit
def _fold_kernel(
    columns, out, N, M,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[k, b, c, h, w]: the sum of the columns that this pixel took part in."""
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b = i // (C * H * W)
    c = (i // (H * W)) % C
    h = (i // W) % H
    w = i % W
    columns += client * C * R * S * M
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for r in range(R):
        oh = h + PAD - r
        for s in range(S):
            ow = w + PAD - s
            inside = (i < N) & (oh >= 0) & (oh < OH) & (ow >= 0) & (ow < OW)
            at = (c * (R * S) + r * S + s).to(tl.int64) * M + b * (OH * OW) + oh * OW + ow
            total += tl.load(columns + at, mask=inside, other=0.0)
    tl.store(out + client * N + i, total, mask=i < N)


@triton.jit
def _weight_kernel(
    x, grad, partial,
    B, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    M, N_RED: tl.constexpr, K, PER_SPLIT: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """partial[split, k, o, (c, r, s)]: grad[k, o, m] * x[k, b, c, oh + r - PAD, ow + s - PAD], summed over a split."""
    client = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    tiles = tl.cdiv(N_RED, BK)
    o = (tl.program_id(0) // tiles) * BN + tl.arange(0, BN)
    red = (tl.program_id(0) % tiles) * BK + tl.arange(0, BK)
    c = red // (R * S)
    tap = red % (R * S)
    r = tap // S
    s = tap % S
    x += client * B * C * H * W
    grad += client * B * CO * OH * OW
    acc = tl.zeros((BN, BK), dtype=tl.float32)
    for step in range(0, PER_SPLIT, BM):
        m = split * PER_SPLIT + step + tl.arange(0, BM)
        b = m // (OH * OW)
        rest = m % (OH * OW)
        oh = rest // OW
        ow = rest % OW
        g = tl.load(
            grad + b[None, :] * (CO * OH * OW) + o[:, None] * (OH * OW) + rest[None, :],
            mask=(m[None, :] < M) & (o[:, None] < CO),
            other=0.0,
        )
        ih = oh[None, :] - PAD + r[:, None]
        iw = ow[None, :] - PAD + s[:, None]
        inside = (m[None, :] < M) & (red[:, None] < N_RED)
        if PAD > 0:
            inside = inside & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        a = tl.load(x + b[None, :] * (C * H * W) + c[:, None] * (H * W) + ih * W + iw, mask=inside, other=0.0)
        acc = tl.dot(g, tl.trans(a), acc, input_precision=PRECISION)
    at = ((split * K + client) * CO + o[:, None]) * N_RED + red[None, :]
    tl.store(partial + at, acc, mask=(o[:, None] < CO) & (red[None, :] < N_RED))


@triton.jit
def _pool_kernel(x, y, which, N, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):
    """Every program takes BLOCK outputs of the flattened [..., H // 2, W // 2]."""
    OH: tl.constexpr = H // 2
    OW: tl.constexpr = W // 2
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    plane = i // (OH * OW)
    rest = i % (OH * OW)
    at = plane * (H * W) + (rest // OW) * (2 * W) + (rest % OW) * 2
    best = tl.load(x + at, mask=inside, other=0.0)
    index = tl.zeros((BLOCK,), dtype=tl.int32)
    for corner in tl.static_range(1, 4):
        value = tl.load(x + at + (corner // 2) * W + corner % 2, mask=inside, other=0.0)
        larger = (value > best) | (value != value)  # noqa: PLR0124
        best = tl.where(larger, value, best)
        index = tl.where(larger, corner, index)
    tl.store(y + i, best, mask=inside)
    tl.store(which + i, index.to(tl.uint8), mask=inside)


@triton.jit
def _unpool_kernel(grad, which, out, N, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):
    """Every program writes BLOCK elements of the flattened [..., H, W]."""
    OH: tl.constexpr = H // 2
    OW: tl.constexpr = W // 2
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    plane = i // (H * W)
    rest = i % (H * W)
    row = rest // W
    column = rest % W
    inside = (i < N) & (row < 2 * OH) & (column < 2 * OW)
    at = plane * (OH * OW) + (row // 2) * OW + column // 2
    chosen = tl.load(which + at, mask=inside, other=4).to(tl.int32) == (row % 2) * 2 + column % 2
    value = tl.load(grad + at, mask=inside & chosen, other=0.0)
    tl.store(out + i, value, mask=i < N)


def pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """See `client_conv.pool`."""
    height, width = x.shape[-2:]
    y = torch.empty(*x.shape[:-2], height // 2, width // 2, device=x.device, dtype=x.dtype)
    which = torch.empty_like(y, dtype=torch.uint8)
    _pool_kernel[(triton.cdiv(y.numel(), 1024),)](x, y, which, y.numel(), H=height, W=width, BLOCK=1024)
    return y, which


def unpool(grad: Tensor, which: Tensor, height: int, width: int) -> Tensor:
    """See `client_conv.unpool`."""
    out = torch.empty(*grad.shape[:-2], height, width, device=grad.device, dtype=grad.dtype)
    _unpool_kernel[(triton.cdiv(out.numel(), 1024),)](grad, which, out, out.numel(), H=height, W=width, BLOCK=1024)
    return out


def _block(size: int, largest: int) -> int:
    """A power of two that covers ``size``, between 16 and ``largest``."""
    return max(16, min(largest, triton.next_power_of_2(size)))


def forward_settings(outputs: int, red: int, precision: str) -> dict[str, int]:
    """Tile sizes of the forward kernel: the winners on an H200 over the shapes of the papers' CNNs."""
    if red <= 32 or (precision != "tf32" and outputs > 32):
        return {"BM": 64, "BK": 32, "num_warps": 2, "num_stages": 3}
    return {"BM": 128, "BK": 16, "num_warps": 4, "num_stages": 4}


def weight_settings(outputs: int, red: int, precision: str) -> dict[str, int]:
    """Tile sizes of the weight kernel, found likewise."""
    if red <= 80:
        return {"BM": 64, "BK": 32, "num_warps": 4, "num_stages": 3}
    if precision != "tf32" and outputs > 32:
        return {"BM": 32, "BK": 128, "num_warps": 4, "num_stages": 3}
    return {"BM": 32, "BK": 64, "num_warps": 4, "num_stages": 4}


def forward(x: Tensor, weight: Tensor, padding: int, precision: str) -> Tensor:
    """See `client_conv.client_conv`."""
    k, batch, channels, height, width = x.shape
    outputs, _, rows, columns = weight.shape[1:]
    out_h, out_w = height + 2 * padding - rows + 1, width + 2 * padding - columns + 1
    y = torch.empty(k, batch, outputs, out_h, out_w, device=x.device, dtype=x.dtype)
    m, red = batch * out_h * out_w, channels * rows * columns
    settings: dict[str, Any] = {**forward_settings(outputs, red, precision), "BN": _block(outputs, 64)}
    grid = (triton.cdiv(m, settings["BM"]), triton.cdiv(outputs, settings["BN"]), k)
    _forward_kernel[grid](
        x, weight, y, batch, channels, height, width, outputs, out_h, out_w, m, red,
        R=rows, S=columns, PAD=padding, PRECISION=precision, **settings,
    )  # fmt: skip
    return y


def input_gradient(grad: Tensor, weight: Tensor, height: int, width: int, padding: int, precision: str) -> Tensor:
    """See `client_conv.client_conv_input`: one product into columns, which are then summed pixel by pixel."""
    k, batch, outputs, out_h, out_w = grad.shape
    _, _, channels, rows, columns = weight.shape
    m, red = batch * out_h * out_w, channels * rows * columns
    made = torch.empty(k, red, m, device=grad.device, dtype=grad.dtype)
    grid = (triton.cdiv(m, 128), triton.cdiv(red, 64), k)
    _column_kernel[grid](
        weight, grad, made, batch, outputs, out_h * out_w, m, red, PRECISION=precision,
        BM=128, BN=min(32, _block(outputs, 32)), BK=64, num_warps=4, num_stages=2,
    )  # fmt: skip
    out = torch.empty(k, batch, channels, height, width, device=grad.device, dtype=grad.dtype)
    n = batch * channels * height * width
    _fold_kernel[(triton.cdiv(n, 512), k)](
        made, out, n, m, channels, height, width, out_h, out_w, R=rows, S=columns, PAD=padding, BLOCK=512, num_warps=4
    )
    return out


def weight_gradient(x: Tensor, grad: Tensor, rows: int, columns: int, padding: int, precision: str) -> Tensor:
    """See `client_conv.client_conv_weight`."""
    k, batch, channels, height, width = x.shape
    outputs, out_h, out_w = grad.shape[2:]
    m, red = batch * out_h * out_w, channels * rows * columns
    settings = weight_settings(outputs, red, precision)
    bn, bk, bm = _block(outputs, 64), _block(red, settings["BK"]), settings["BM"]
    tiles = triton.cdiv(outputs, bn) * triton.cdiv(red, bk)
    # Enough programs to fill the chip, but no split shorter than a few steps.
    splits = max(1, min(triton.cdiv(1056, tiles * k), triton.cdiv(m, 8 * bm)))
    per_split = triton.cdiv(triton.cdiv(m, splits), bm) * bm
    splits = triton.cdiv(m, per_split)
    partial = torch.empty(splits, k, outputs, red, device=x.device, dtype=torch.float32)
    _weight_kernel[(tiles, splits, k)](
        x, grad, partial, batch, channels, height, width, outputs, out_h, out_w, m, red, k, per_split,
        R=rows, S=columns, PAD=padding, PRECISION=precision, BM=bm, BN=bn, BK=bk,
        num_warps=settings["num_warps"], num_stages=settings["num_stages"],
    )  # fmt: skip
    total = partial[0] if splits == 1 else partial.sum(0)
    return total.view(k, outputs, channels, rows, columns).to(x.dtype)
