"""The Triton kernels behind `motley.engine.kernels.conv_op`: convolutions and the gradients of their weights.

Images lie as [K, B, H, W, C]: channels last, so that a tile of an unfolded image is made of long runs of memory. An
element of an unfolded patch is counted by ``red = (r, s, c)``, in which order weights [K, O, R, S, C] lie as well. C
may be more than there are channels: the rest is zero. Imported only where kernels run.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from motley.engine.kernels.conv_layout_kernels import factor


@triton.jit
def _place(m, OH: tl.constexpr, OW: tl.constexpr, POOL: tl.constexpr):
    """Image, row and column of output pixel m. With POOL the four pixels of every 2 x 2 square follow each other."""
    if POOL:
        square = m // 4
        b = square // ((OH // 2) * (OW // 2))
        rest = square % ((OH // 2) * (OW // 2))
        oh = rest // (OW // 2) * 2 + m % 4 // 2
        ow = rest % (OW // 2) * 2 + m % 2
    else:
        b = m // (OH * OW)
        rest = m % (OH * OW)
        oh = rest // OW
        ow = rest % OW
    return b, oh, ow


@triton.jit
def _patches(
    x, b, oh, ow, live, begin,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, R: tl.constexpr, PAD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of the unfolded image: pixels times red from ``begin``, a multiple of BK.

    Addresses are written so that the compiler sees that neighbours lie side by side: only then it reads many at once.
    """
    pixel = ((b * H + oh) * W + ow) * C
    red = begin + tl.arange(0, BK)
    if C % BK == 0:  # a tile lies within one tap
        r = begin // (R * C)
        s = begin // C - r * R
        at = pixel[:, None] + (r * (W - R) * C + red - PAD * (W + 1) * C)[None, :]
        inside = live
        if PAD > 0:
            inside &= (oh + r >= PAD) & (oh + r < H + PAD) & (ow + s >= PAD) & (ow + s < W + PAD)
        return tl.load(x + at, mask=inside[:, None], other=0.0)
    tap = red // C
    r = tap // R
    at = pixel[:, None] + (r * ((W - R) * C) + red - PAD * (W + 1) * C)[None, :]
    inside = live[:, None] & (red < R * R * C)[None, :]
    if PAD > 0:
        ih = oh[:, None] + r[None, :]
        iw = ow[:, None] + (tap % R)[None, :]
        inside &= (ih >= PAD) & (ih < H + PAD) & (iw >= PAD) & (iw < W + PAD)
    return tl.load(x + at, mask=inside, other=0.0)


@triton.jit
def _finished(
    y, bias, largest, client, o, SLOPE, BIAS_ROW, CO: tl.constexpr,
    BIAS: tl.constexpr, LEAKY: tl.constexpr, SCALED: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """What a tile of a convolution becomes before it is written: with bias, activated, in its scale and range."""
    if BIAS:
        y += tl.load(bias + client * BIAS_ROW + o, mask=o < CO, other=0.0)[None, :]
    if LEAKY:
        y = tl.where(y > 0, y, SLOPE * y)
    if SCALED:
        y = y / factor(largest, client)
    if HALF:
        y = tl.clamp(y, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    return y


@triton.jit
def _forward_kernel(
    x, weight, bias, y, which, largest, B, M, SLOPE, BIAS_ROW,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr, CY: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, R: tl.constexpr, PAD: tl.constexpr, ROW: tl.constexpr,
    BIAS: tl.constexpr, POOL: tl.constexpr, LEAKY: tl.constexpr, LAID: tl.constexpr, PLANAR: tl.constexpr,
    SCALED: tl.constexpr, HALF: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[k, m, o] = activation of bias[k, o] + sum over red of patch[k, m, red] * weight[k, o, red]; largest of four.

    LAID: weights lie as [O, C, R, R]. PLANAR: y lies as [B, O, pixels]. SCALED: x and so y are multiples of what they
    stand for; y is divided by that factor. HALF: y is float16. CY: outputs that y has room for; those beyond are zero.
    """
    N_RED: tl.constexpr = R * R * C
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    b, oh, ow = _place(m, OH, OW, POOL)
    x += client * B * (H * W * C)
    weight += client * ROW
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for begin in range(0, N_RED, BK):
        red = begin + tl.arange(0, BK)
        patch = _patches(x, b, oh, ow, m < M, begin, H, W, C, R, PAD, BK)
        inside = (red[:, None] < N_RED) & (o[None, :] < CO)
        tap = red
        if LAID:
            tap = red % C * (R * R) + red // C
        taps = tl.load(weight + o[None, :] * N_RED + tap[:, None], mask=inside, other=0.0)
        acc = tl.dot(patch, taps, acc, input_precision="tf32x3")
    if POOL:
        best, index = tl.max(tl.reshape(acc, (BM // 4, 4, BN)), 1, return_indices=True)
        m = tl.program_id(0) * (BM // 4) + tl.arange(0, BM // 4)
        M = M // 4
    else:
        best = acc
    best = _finished(best, bias, largest, client, o, SLOPE, BIAS_ROW, CO, BIAS, LEAKY, SCALED, HALF)
    if PLANAR:
        PIXELS: tl.constexpr = (OH // 2) * (OW // 2) if POOL else OH * OW
        at = ((client * B + m // PIXELS) * (CY * PIXELS) + m % PIXELS)[:, None] + (o * PIXELS)[None, :]
    else:
        at = (client * M + m[:, None]) * CY + o[None, :]
    inside = (m[:, None] < M) & (o[None, :] < CY)
    tl.store(y + at, best.to(y.dtype.element_ty), mask=inside)
    if POOL:
        tl.store(which + at, index.to(tl.uint8), mask=inside)


@triton.jit
def _weight_kernel(
    x, grad, partial, largest, B, M, K, PER_SPLIT: tl.constexpr,
    C: tl.constexpr, CX: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr, CG: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, R: tl.constexpr, PAD: tl.constexpr, SCALED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """partial[split, k]: grad[k, m, o] * patch[k, m, red] summed over a split of the pixels.

    It is written in the order of the parameters: [O, CX, R, R]. CG: outputs that grad has room for. SCALED: grad is a
    multiple of what it stands for; what is written is divided by that factor.
    """
    N_RED: tl.constexpr = R * R * C
    N_OUT: tl.constexpr = R * R * CX
    client = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    tiles = tl.cdiv(N_RED, BK)
    o = (tl.program_id(0) // tiles) * BN + tl.arange(0, BN)
    begin = (tl.program_id(0) % tiles) * BK
    red = begin + tl.arange(0, BK)
    x += client * B * (H * W * C)
    grad += client * M * CG
    acc = tl.zeros((BK, BN), dtype=tl.float32)
    for step in range(0, PER_SPLIT, BM):
        m = split * PER_SPLIT + step + tl.arange(0, BM)
        b, oh, ow = _place(m, OH, OW, False)
        g = tl.load(grad + m[:, None] * CG + o[None, :], mask=(m[:, None] < M) & (o[None, :] < CO), other=0.0)
        patch = _patches(x, b, oh, ow, m < M, begin, H, W, C, R, PAD, BK)
        acc = tl.dot(tl.trans(patch), g, acc, input_precision="tf32x3")
    if SCALED:
        acc = acc / factor(largest, client)
    partial += (split * K + client) * (CO * N_OUT)
    at = o[None, :] * N_OUT + (red % C * (R * R) + red // C)[:, None]
    real = (red < N_RED) & (red % C < CX)
    tl.store(partial + at, acc, mask=(o[None, :] < CO) & real[:, None])


def _block(size: int, largest: int) -> int:
    """A power of two that covers ``size``, between 16 and ``largest``."""
    return max(16, min(largest, triton.next_power_of_2(size)))


def forward_settings(outputs: int, red: int, half: bool) -> dict[str, int]:
    """Tile sizes of the forward kernel: the winners on an H200 over the shapes of the papers' CNNs."""
    if half:
        return {"BM": 128, "BK": 32, "num_warps": 4, "num_stages": 1 if red <= 128 else 3}
    if red <= 80:
        return {"BM": 128, "BK": 32, "num_warps": 4, "num_stages": 1}
    if outputs <= 16:
        return {"BM": 64, "BK": 64 if red >= 512 else 32, "num_warps": 4, "num_stages": 1}
    if outputs <= 32:
        return {"BM": 64, "BK": 16, "num_warps": 4, "num_stages": 1}
    return {"BM": 64, "BK": 32, "num_warps": 4, "num_stages": 3}


def weight_settings(red: int, m: int, half: bool) -> dict[str, int]:
    """Tile sizes of the weight kernel for m pixels of a client, found likewise."""
    if half and 64 < red <= 128:
        return {"BM": 64, "BK": 128, "num_warps": 4, "num_stages": 2}
    if half and red > 128 and m > 6000:
        return {"BM": 64, "BK": 64, "num_warps": 4, "num_stages": 3}
    if half:
        return {"BM": 128, "BK": 64, "num_warps": 4, "num_stages": 2}
    return {"BM": 128 if red <= 80 else 64, "BK": 64, "num_warps": 4, "num_stages": 1}


def block_results(
    x: Tensor, rows: int, padding: int, pool: bool, planar: bool, room: int, half: bool
) -> tuple[Tensor, Tensor]:
    """The results of `conv_op.conv_block`, empty."""
    k, batch, *image = x.shape[:4]
    sizes = [length + 2 * padding - rows + 1 for length in image]
    pixels = [size // 2 if pool else size for size in sizes]
    shape = (k, batch, room, *pixels) if planar else (k, batch, *pixels, room)
    y = torch.empty(shape, device=x.device, dtype=torch.float16 if half else torch.float32)
    return y, torch.empty(shape if pool else (k, 0), device=x.device, dtype=torch.uint8)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, maxima: Tensor | None, padding: int, pool: bool, slope: float,
    planar: bool, room: int, half: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """See `conv_op.conv_block`."""
    k, batch, height, width, channels = x.shape
    outputs, rows = weight.shape[1:3]
    out_h, out_w = height + 2 * padding - rows + 1, width + 2 * padding - rows + 1
    y, which = block_results(x, rows, padding, pool, planar, room, half)
    m = y.numel() // (k * room) * (4 if pool else 1)
    settings = {
        "BN": _block(room, 64),
        **forward_settings(outputs, channels * rows * rows, x.dtype == torch.float16),
    }
    if padding and channels % 16 == 0:  # a tile in one tap: over several, a compiler lost the border of 8 x 8 images
        settings["BK"] = min(settings["BK"], channels & -channels)
    _forward_kernel[(triton.cdiv(m, settings["BM"]), triton.cdiv(room, settings["BN"]), k)](
        x, weight, weight if bias is None else bias, y, which, y if maxima is None else maxima, batch, m, slope,
        0 if bias is None else bias.stride(0),
        C=channels, H=height, W=width, CO=outputs, CY=room, OH=out_h, OW=out_w, R=rows, PAD=padding,
        ROW=weight.stride(0), BIAS=bias is not None, POOL=pool, LEAKY=slope != 1.0,
        LAID=channels > 1 and weight.stride(4) != 1, PLANAR=planar, SCALED=maxima is not None, HALF=half, **settings,
    )  # fmt: skip
    return y, which


def _weight_tiles(outputs: int, red: int, m: int, half: bool) -> tuple[int, int, int, dict[str, int]]:
    """Tiles of one client's weights, and their outputs and red; the rest of the settings."""
    settings = weight_settings(red, m, half)
    bn, bk = _block(outputs, 64), _block(red, settings["BK"])
    return triton.cdiv(outputs, bn) * triton.cdiv(red, bk), bn, bk, settings


def weight_split(k: int, m: int, outputs: int, red: int, half: bool) -> int:
    """Pixels of a split: enough programs to fill the chip, but no split shorter than a few steps."""
    tiles, _, _, settings = _weight_tiles(outputs, red, m, half)
    bm = settings["BM"]
    splits = max(1, min(triton.cdiv(1056, tiles * k), triton.cdiv(m, 8 * bm)))
    return int(triton.cdiv(triton.cdiv(m, splits), bm) * bm)


def weight_gradient(
    x: Tensor, grad: Tensor, maxima: Tensor | None, channels: int, outputs: int, rows: int, padding: int, per_split: int
) -> Tensor:
    """See `conv_op.conv_weight`."""
    k, batch, height, width, stored = x.shape
    out_h, out_w, room = grad.shape[2:]
    m = batch * out_h * out_w
    tiles, bn, bk, settings = _weight_tiles(outputs, stored * rows * rows, m, x.dtype == torch.float16)
    splits = triton.cdiv(m, per_split)
    partial = torch.empty(splits, k, outputs * channels * rows * rows, device=x.device)
    _weight_kernel[(tiles, splits, k)](
        x, grad, partial, partial if maxima is None else maxima, batch, m, k, per_split,
        C=stored, CX=channels, H=height, W=width, CO=outputs, CG=room, OH=out_h, OW=out_w, R=rows, PAD=padding,
        SCALED=maxima is not None, BM=settings["BM"], BN=bn, BK=bk,
        num_warps=settings["num_warps"], num_stages=settings["num_stages"],
    )  # fmt: skip
    return partial
