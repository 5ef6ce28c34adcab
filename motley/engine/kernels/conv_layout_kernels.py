"""The Triton kernels behind `motley.engine.kernels.conv_op` that lay images, weights and gradients out; see there.

Gradients are kept as float16 times a factor of their client's own: a power of two that takes the largest of them to
between 32 and 64. So small ones are kept as exactly as TF32 keeps them, and there is room for what a convolution makes
of them. Imported only where kernels run.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PARTS: tl.constexpr = tl.constexpr(16)  # maxima of a client's gradient


@triton.jit
def factor(largest, client):
    """The factor of a client's gradient, from maxima of its parts."""
    most = tl.max(tl.load(largest + client * PARTS + tl.arange(0, PARTS)), 0)
    exponent = most.to(tl.int32, bitcast=True) >> 23  # biased by 127
    return (tl.minimum(tl.maximum(259 - exponent, 1), 253) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _largest_kernel(grad, largest, N: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr):
    """largest[k, part]: the largest absolute value of PART of a client's N numbers."""
    client = tl.program_id(1).to(tl.int64)
    most = tl.zeros((BLOCK,), dtype=tl.float32)
    for step in range(0, PART, BLOCK):
        i = tl.program_id(0) * PART + step + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.abs(tl.load(grad + client * N + i, mask=i < N, other=0.0)))
    tl.store(largest + client * PARTS + tl.program_id(0), tl.max(most, 0))


@triton.jit
def _cast_kernel(x, out, N, C: tl.constexpr, CX: tl.constexpr, BLOCK: tl.constexpr):
    """From pixels of CX numbers to pixels of C, the rest of them zero."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(x + i // C * CX + i % C, mask=(i < N) & (i % C < CX), other=0.0)
    tl.store(out + i, found.to(out.dtype.element_ty), mask=i < N)


@triton.jit
def _arrange_kernel(
    weight, kernel, turned, ROW, CX: tl.constexpr, C: tl.constexpr, CO: tl.constexpr, CG: tl.constexpr,
    TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """From weights [O, CX, TAPS] to kernel [O, TAPS, C] and turned [CX, TAPS backwards, CG]."""
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    weight += client * ROW
    N: tl.constexpr = CO * C * TAPS
    c = i % C
    found = tl.load(weight + (i // (TAPS * C) * CX + c) * TAPS + i // C % TAPS, mask=(i < N) & (c < CX), other=0.0)
    tl.store(kernel + client * N + i, found.to(kernel.dtype.element_ty), mask=i < N)
    BACK: tl.constexpr = CX * CG * TAPS
    o = i % CG
    at = (o * CX + i // (TAPS * CG)) * TAPS + (TAPS - 1 - i // CG % TAPS)
    found = tl.load(weight + at, mask=(i < BACK) & (o < CO), other=0.0)
    tl.store(turned + client * BACK + i, found.to(turned.dtype.element_ty), mask=i < BACK)


@triton.jit
def _scales(largest, client, SCALES: tl.constexpr, SCALED: tl.constexpr):
    """What a client's gradients are multiplied by as they are written, and their sums."""
    times, back = 1.0, 1.0
    if SCALED:
        back = 1.0 / factor(largest, client)
    elif SCALES:
        times = factor(largest, client)
    return times, back


@triton.jit
def _store_squares(
    out, g, chosen, image, row, column, there, o, OH: tl.constexpr, OW: tl.constexpr, CG: tl.constexpr
):  # fmt: skip
    """Gradients of pooled pixels to that one of their four which was chosen, and zero to the others."""
    for i in tl.static_range(4):
        oh = row * 2 + i // 2
        ow = column * 2 + i % 2
        to = (((image * OH + oh) * OW + ow) * CG)[:, None] + o[None, :]
        here = there & (oh < OH) & (ow < OW)
        found = tl.where(chosen == i, g, 0.0).to(out.dtype.element_ty)
        tl.store(out + to, found, mask=here[:, None] & (o < CG)[None, :])


@triton.jit
def _spread_kernel(
    grad, y, which, out, bias, largest, SLOPE, B, TILES: tl.constexpr,
    CO: tl.constexpr, CY: tl.constexpr, CG: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, POOL: tl.constexpr,
    LEAKY: tl.constexpr, PLANAR: tl.constexpr, SCALES: tl.constexpr, SCALED: tl.constexpr,
    BP: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """out[k, b, oh, ow, o]: the gradient before activation and pooling; bias[k, part, o]: its sum over a part.

    A program takes TILES tiles of a client's squares (or pixels) times outputs. grad, y and which lie as [K, B, O,
    pixels] where PLANAR, and as [K, B, pixels, CY] otherwise; out has room for CG outputs. SCALES: out is multiplied by
    the client's factor. SCALED: grad has been already, so out keeps it, and sums are divided by it.
    """
    client = tl.program_id(2).to(tl.int64)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    PH: tl.constexpr = OH // 2 if POOL else OH
    PW: tl.constexpr = OW // 2 if POOL else OW
    DOWN: tl.constexpr = (OH + 1) // 2 if POOL else OH  # squares; the last may lie over the edge
    ACROSS: tl.constexpr = (OW + 1) // 2 if POOL else OW
    total = tl.zeros((BP, BO), dtype=tl.float32)
    times, back = _scales(largest, client, SCALES, SCALED)
    for tile in range(TILES):
        p = (tl.program_id(0) * TILES + tile) * BP + tl.arange(0, BP)
        image = client * B + p // (DOWN * ACROSS)
        row = p % (DOWN * ACROSS) // ACROSS
        column = p % ACROSS
        there = p < B * (DOWN * ACROSS)
        inside = there & (row < PH) & (column < PW)
        pixel = p % (DOWN * ACROSS) if DOWN * ACROSS == PH * PW else row * PW + column
        if PLANAR:
            at = (image * (CO * PH * PW) + pixel)[:, None] + (o * (PH * PW))[None, :]
        else:
            at = ((image * (PH * PW) + pixel) * CY)[:, None] + o[None, :]
        live = inside[:, None] & (o < CO)[None, :]
        g = tl.load(grad + at, mask=live, other=0.0).to(tl.float32)
        if LEAKY:
            g = tl.where(tl.load(y + at, mask=live, other=0.0) > 0, g, SLOPE * g)
        total += g
        g *= times
        if POOL:
            chosen = tl.load(which + at, mask=live, other=4).to(tl.int32)
            _store_squares(out, g, chosen, image, row, column, there, o, OH, OW, CG)
        else:
            to = ((image * (OH * OW) + pixel) * CG)[:, None] + o[None, :]
            tl.store(out + to, g.to(out.dtype.element_ty), mask=there[:, None] & (o < CG)[None, :])
    part = client * tl.num_programs(0) + tl.program_id(0)
    tl.store(bias + part * CO + o, tl.sum(total, 0) * back, mask=o < CO)


def largest(grad: Tensor) -> Tensor:
    """See `conv_op.conv_largest`."""
    k, parts, n = len(grad), PARTS.value, grad[0].numel()
    found = torch.empty(k, parts, device=grad.device)
    block = min(2048, triton.next_power_of_2(triton.cdiv(n, parts)))
    part = triton.cdiv(triton.cdiv(n, parts), block) * block
    _largest_kernel[(parts, k)](grad, found, n, part, BLOCK=block, num_warps=4)
    return found


def cast(x: Tensor, channels: int) -> Tensor:
    """See `conv_op.conv_cast`."""
    out = torch.empty(*x.shape[:-1], channels, device=x.device, dtype=torch.float16)
    _cast_kernel[(triton.cdiv(out.numel(), 1024),)](
        x, out, out.numel(), C=channels, CX=x.shape[-1], BLOCK=1024, num_warps=4
    )
    return out


def arrange(weight: Tensor, channels: int, outputs: int, half: bool) -> tuple[Tensor, Tensor]:
    """See `conv_op.conv_arrange`."""
    k, real_outputs, real_channels, rows, _ = weight.shape
    dtype = torch.float16 if half else torch.float32
    kernel = torch.empty(k, real_outputs, rows, rows, channels, device=weight.device, dtype=dtype)
    turned = torch.empty(k, real_channels, rows, rows, outputs, device=weight.device, dtype=dtype)
    most = max(kernel[0].numel(), turned[0].numel())
    _arrange_kernel[(triton.cdiv(most, 1024), k)](
        weight, kernel, turned, weight.stride(0),
        CX=real_channels, C=channels, CO=real_outputs, CG=outputs, TAPS=rows * rows, BLOCK=1024, num_warps=4,
    )  # fmt: skip
    return kernel, turned


SQUARES = 32  # of a tile, or pixels where nothing is pooled


def _tiles(batch: int, height: int, width: int, pool: bool) -> int:
    """Tiles of a client's squares, or of its pixels."""
    return int(triton.cdiv(batch * (((height + 1) // 2) * ((width + 1) // 2) if pool else height * width), SQUARES))


def spread_parts(batch: int, height: int, width: int, pool: bool) -> int:
    """Into how many parts a client's pixels are cut, each with a sum of its own: no more than an update adds up."""
    tiles = _tiles(batch, height, width, pool)
    return int(triton.cdiv(tiles, triton.cdiv(tiles, 200)))


def spread(
    grad: Tensor, y: Tensor, which: Tensor, maxima: Tensor | None, height: int, width: int, pool: bool, slope: float,
    planar: bool, outputs: int, room: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """See `conv_op.conv_spread`."""
    (k, batch), half = grad.shape[:2], maxima is not None
    out = torch.empty(k, batch, height, width, room, device=grad.device, dtype=torch.float16 if half else torch.float32)
    parts = spread_parts(batch, height, width, pool)
    bias = torch.empty(k, parts, outputs, device=grad.device)
    bo = max(16, min(64, triton.next_power_of_2(room)))
    tiles = triton.cdiv(_tiles(batch, height, width, pool), parts)
    _spread_kernel[(parts, triton.cdiv(room, bo), k)](
        grad, y, which, out, bias, bias if maxima is None else maxima, slope, batch, tiles,
        CO=outputs, CY=outputs if planar else grad.shape[-1], CG=room, OH=height, OW=width, POOL=pool,
        LEAKY=slope != 1.0, PLANAR=planar, SCALES=half and grad.dtype == torch.float32,
        SCALED=half and grad.dtype == torch.float16, BP=SQUARES, BO=bo, num_warps=4,
    )  # fmt: skip
    return out, bias
