"""The Triton kernels behind `motley.nets.client_conv`; imported only where they run.

Images lie as [K, B, H, W, C]: channels last, so that a tile of an unfolded image is made of long runs of memory. An
element of an unfolded patch is counted by ``red = (r, s, c)``, in which order weights [K, O, R, S, C] lie as well.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


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
    """A tile of the unfolded image: pixels times red from ``begin``, a multiple of BK."""
    pixel = ((b * H + oh) * W + ow) * C
    if C % BK == 0:  # a tile lies within one tap
        r = begin // (R * C) - PAD
        s = begin // C % R - PAD
        at = pixel[:, None] + ((r * W + s) * C + begin % C + tl.arange(0, BK))[None, :]
        inside = live
        if PAD > 0:
            inside = inside & (oh + r >= 0) & (oh + r < H) & (ow + s >= 0) & (ow + s < W)
        return tl.load(x + at, mask=inside[:, None], other=0.0)
    red = begin + tl.arange(0, BK)
    r = red // (R * C)
    rest = red % (R * C)
    at = pixel[:, None] + ((r - PAD) * (W * C) + (rest - PAD * C))[None, :]
    inside = live[:, None] & (red < R * R * C)[None, :]
    if PAD > 0:
        ih = oh[:, None] + (r - PAD)[None, :]
        iw = ow[:, None] + (rest // C - PAD)[None, :]
        inside = inside & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
    return tl.load(x + at, mask=inside, other=0.0)


@triton.jit
def _forward_kernel(
    x, weight, bias, y, which, B, M, SLOPE, ROW, BIAS_ROW,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    R: tl.constexpr, PAD: tl.constexpr, BIAS: tl.constexpr, POOL: tl.constexpr, LEAKY: tl.constexpr,
    LAID: tl.constexpr, PLANAR: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[k, m, o] = activation of bias[k, o] + sum over red of patch[k, m, red] * weight[k, o, red]; largest of four.

    LAID: weights lie as [O, C, R, R]. PLANAR: y lies as [B, O, pixels].
    """
    N_RED: tl.constexpr = R * R * C
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    b, oh, ow = _place(m, OH, OW, POOL)
    x += client * B * H * W * C
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
        acc = tl.dot(patch, taps, acc, input_precision=PRECISION)
    if POOL:
        best, index = tl.max(tl.reshape(acc, (BM // 4, 4, BN)), 1, return_indices=True)
        m = tl.program_id(0) * (BM // 4) + tl.arange(0, BM // 4)
        M = M // 4
    else:
        best = acc
    if BIAS:
        best += tl.load(bias + client * BIAS_ROW + o, mask=o < CO, other=0.0)[None, :]
    if LEAKY:
        best = tl.where(best > 0, best, SLOPE * best)
    if PLANAR:
        PIXELS: tl.constexpr = (OH // 2) * (OW // 2) if POOL else OH * OW
        at = ((client * B + m // PIXELS) * (CO * PIXELS) + m % PIXELS)[:, None] + (o * PIXELS)[None, :]
    else:
        at = (client * M + m[:, None]) * CO + o[None, :]
    inside = (m[:, None] < M) & (o[None, :] < CO)
    tl.store(y + at, best, mask=inside)
    if POOL:
        tl.store(which + at, index.to(tl.uint8), mask=inside)


@triton.jit
def _spread_kernel(
    grad, y, which, out, N, SLOPE,
    CO: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, POOL: tl.constexpr, LEAKY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[k, b, oh, ow, o]: the gradient before activation and pooling."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if POOL:
        o = i % CO
        pixel = i // CO
        ow = pixel % OW
        oh = pixel // OW % OH
        image = pixel // (OH * OW)
        inside = (i < N) & (oh < OH // 2 * 2) & (ow < OW // 2 * 2)
        at = ((image * (OH // 2) + oh // 2) * (OW // 2) + ow // 2) * CO + o
        inside = inside & (tl.load(which + at, mask=inside, other=4).to(tl.int32) == (oh % 2 * 2 + ow % 2))
    else:
        at = i
        inside = i < N
    g = tl.load(grad + at, mask=inside, other=0.0)
    if LEAKY:
        g = tl.where(tl.load(y + at, mask=inside, other=0.0) > 0, g, SLOPE * g)
    tl.store(out + i, g, mask=i < N)


@triton.jit
def _planar_spread_kernel(
    grad, y, which, out, SLOPE, TILES: tl.constexpr, CO: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    POOL: tl.constexpr, LEAKY: tl.constexpr, BP: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """As `_spread_kernel`, from grad, y and which as [K, B, O, pixels]: a tile is squares (or pixels) times outputs."""
    image = (tl.program_id(0) // TILES).to(tl.int64)
    p = tl.program_id(0) % TILES * BP + tl.arange(0, BP)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    PH: tl.constexpr = OH // 2 if POOL else OH
    PW: tl.constexpr = OW // 2 if POOL else OW
    pixel = p
    inside = p < PH * PW
    if POOL:
        ACROSS: tl.constexpr = (OW + 1) // 2  # squares side by side; the last may lie over the edge
        DOWN: tl.constexpr = (OH + 1) // 2
        row = p // ACROSS
        column = p % ACROSS
        if ACROSS != PW:
            pixel = row * PW + column
            inside = (row < PH) & (column < PW)
    at = pixel[:, None] + ((image * CO + o) * (PH * PW))[None, :]
    live = inside[:, None] & (o < CO)[None, :]
    g = tl.load(grad + at, mask=live, other=0.0)
    if LEAKY:
        g = tl.where(tl.load(y + at, mask=live, other=0.0) > 0, g, SLOPE * g)
    if POOL:
        chosen = tl.load(which + at, mask=live, other=4).to(tl.int32)
        for i in tl.static_range(4):
            oh = row * 2 + i // 2
            ow = column * 2 + i % 2
            to = (((image * OH + oh) * OW + ow) * CO)[:, None] + o[None, :]
            here = (row < DOWN) & (oh < OH) & (ow < OW)
            tl.store(out + to, tl.where(chosen == i, g, 0.0), mask=here[:, None] & (o < CO)[None, :])
    else:
        tl.store(out + ((image * (OH * OW) + p) * CO)[:, None] + o[None, :], g, mask=live)


@triton.jit
def _arrange_kernel(
    weight, kernel, turned, ROW, CO: tl.constexpr, C: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr
):
    """From weights [O, C, TAPS] to kernel [O, TAPS, C] and turned [C, TAPS backwards, O]."""
    N: tl.constexpr = CO * C * TAPS
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    weight += client * ROW
    at = (i // (TAPS * C) * C + i % C) * TAPS + i // C % TAPS
    tl.store(kernel + client * N + i, tl.load(weight + at, mask=i < N, other=0.0), mask=i < N)
    at = (i % CO * C + i // (TAPS * CO)) * TAPS + (TAPS - 1 - i // CO % TAPS)
    tl.store(turned + client * N + i, tl.load(weight + at, mask=i < N, other=0.0), mask=i < N)


@triton.jit
def _weight_kernel(
    x, grad, partial, B, M, K, PER_SPLIT: tl.constexpr,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    R: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr, PAIRS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """partial[split, k]: grad[k, m, o] * patch[k, m, red] summed over a split of the pixels, and grad[k, m, o] alone.

    It is written in the order of the parameters: weights [O, C, R, R], then biases [O].
    """
    N_RED: tl.constexpr = R * R * C
    client = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    tiles = tl.cdiv(N_RED, BK)
    o = (tl.program_id(0) // tiles) * BN + tl.arange(0, BN)
    begin = (tl.program_id(0) % tiles) * BK
    red = begin + tl.arange(0, BK)
    x += client * B * H * W * C
    grad += client * M * CO
    acc = tl.zeros((BK, BN), dtype=tl.float32)
    total = tl.zeros((BN,), dtype=tl.float32)
    for step in range(0, PER_SPLIT, BM):
        m = split * PER_SPLIT + step + tl.arange(0, BM)
        b, oh, ow = _place(m, OH, OW, False)
        g = tl.load(grad + m[:, None] * CO + o[None, :], mask=(m[:, None] < M) & (o[None, :] < CO), other=0.0)
        patch = _patches(x, b, oh, ow, m < M, begin, H, W, C, R, PAD, BK)
        if PAIRS:
            # Two bfloat16 numbers hold more digits than one TF32 number, and can be multiplied as they lie; TF32 needs
            # pixels along the last axis.
            high, g_high = patch.to(tl.bfloat16), g.to(tl.bfloat16)
            low, g_low = (patch - high.to(tl.float32)).to(tl.bfloat16), (g - g_high.to(tl.float32)).to(tl.bfloat16)
            acc = tl.dot(tl.trans(high), g_high, acc)
            acc = tl.dot(tl.trans(high), g_low, acc)
            acc = tl.dot(tl.trans(low), g_high, acc)
        else:
            acc = tl.dot(tl.trans(patch), g, acc, input_precision=PRECISION)
        total += tl.sum(g, 0)
    partial += (split * K + client) * (CO * N_RED + CO)
    at = o[None, :] * N_RED + (red % C * (R * R) + red // C)[:, None]
    tl.store(partial + at, acc, mask=(o[None, :] < CO) & (red[:, None] < N_RED))
    if tl.program_id(0) % tiles == 0:
        tl.store(partial + CO * N_RED + o, total, mask=o < CO)


def _block(size: int, largest: int) -> int:
    """A power of two that covers ``size``, between 16 and ``largest``."""
    return max(16, min(largest, triton.next_power_of_2(size)))


def forward_settings(outputs: int, red: int) -> dict[str, int]:
    """Tile sizes of the forward kernel: the winners on an H200 over the shapes of the papers' CNNs."""
    if red <= 80:
        return {"BM": 128, "BK": 32, "num_warps": 4, "num_stages": 1}
    if outputs <= 16:
        return {"BM": 64, "BK": 64 if red >= 512 else 32, "num_warps": 4, "num_stages": 1}
    if outputs <= 32:
        return {"BM": 64, "BK": 16, "num_warps": 4, "num_stages": 1}
    return {"BM": 64, "BK": 32, "num_warps": 4, "num_stages": 3}


def weight_settings(outputs: int, red: int) -> dict[str, int]:
    """Tile sizes of the weight kernel, found likewise."""
    return {"BM": 128 if red <= 80 else 64, "BK": 64, "num_warps": 4, "num_stages": 1}


def arrange(weight: Tensor) -> tuple[Tensor, Tensor]:
    """See `client_conv.conv_arrange`."""
    k, outputs, channels, rows, _ = weight.shape
    kernel = torch.empty(k, outputs, rows, rows, channels, device=weight.device)
    turned = torch.empty(k, channels, rows, rows, outputs, device=weight.device)
    _arrange_kernel[(triton.cdiv(weight[0].numel(), 1024), k)](
        weight, kernel, turned, weight.stride(0), CO=outputs, C=channels, TAPS=rows * rows, BLOCK=1024, num_warps=4
    )
    return kernel, turned


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, pool: bool, slope: float, planar: bool, precision: str
) -> tuple[Tensor, Tensor]:
    """See `client_conv.conv_block`."""
    k, batch, height, width, channels = x.shape
    outputs, rows = weight.shape[1:3]
    out_h, out_w = height + 2 * padding - rows + 1, width + 2 * padding - rows + 1
    pixels = (out_h // 2, out_w // 2) if pool else (out_h, out_w)
    shape = (k, batch, outputs, *pixels) if planar else (k, batch, *pixels, outputs)
    y = torch.empty(shape, device=x.device)
    which = torch.empty(shape if pool else (0,), device=x.device, dtype=torch.uint8)
    m = y.numel() // (k * outputs) * (4 if pool else 1)
    settings = {"BN": _block(outputs, 64), **forward_settings(outputs, channels * rows * rows)}
    _forward_kernel[(triton.cdiv(m, settings["BM"]), triton.cdiv(outputs, settings["BN"]), k)](
        x, weight, weight if bias is None else bias, y, which, batch, m, slope,
        weight.stride(0), 0 if bias is None else bias.stride(0),
        C=channels, H=height, W=width, CO=outputs, OH=out_h, OW=out_w, R=rows, PAD=padding,
        BIAS=bias is not None, POOL=pool, LEAKY=slope != 1.0, LAID=channels > 1 and weight.stride(4) != 1,
        PLANAR=planar, PRECISION=precision, **settings,
    )  # fmt: skip
    return y, which


def spread(
    grad: Tensor, y: Tensor, which: Tensor, height: int, width: int, pool: bool, slope: float, planar: bool
) -> Tensor:
    """See `client_conv.conv_spread`."""
    k, batch, outputs = *grad.shape[:2], grad.shape[2 if planar else -1]
    out = torch.empty(k, batch, height, width, outputs, device=grad.device)
    sizes = {"CO": outputs, "OH": height, "OW": width, "POOL": pool, "LEAKY": slope != 1.0}
    if planar:
        squares = ((height + 1) // 2) * ((width + 1) // 2) if pool else height * width
        bp, bo = _block(squares, 32), _block(outputs, 64)
        tiles = triton.cdiv(squares, bp)
        _planar_spread_kernel[(k * batch * tiles, triton.cdiv(outputs, bo))](
            grad, y, which, out, slope, tiles, **sizes, BP=bp, BO=bo, num_warps=4
        )
        return out
    _spread_kernel[(triton.cdiv(out.numel(), 1024),)](
        grad, y, which, out, out.numel(), slope, **sizes, BLOCK=1024, num_warps=4
    )
    return out


def _weight_tiles(outputs: int, red: int) -> tuple[int, int, int, dict[str, int]]:
    """Tiles of one client's weights, and their outputs and red; the rest of the settings."""
    settings = weight_settings(outputs, red)
    bn, bk = _block(outputs, 64), _block(red, settings["BK"])
    return triton.cdiv(outputs, bn) * triton.cdiv(red, bk), bn, bk, settings


def weight_split(k: int, m: int, outputs: int, red: int) -> int:
    """Pixels of a split: enough programs to fill the chip, but no split shorter than a few steps."""
    tiles, _, _, settings = _weight_tiles(outputs, red)
    bm = settings["BM"]
    splits = max(1, min(triton.cdiv(1056, tiles * k), triton.cdiv(m, 8 * bm)))
    return int(triton.cdiv(triton.cdiv(m, splits), bm) * bm)


def weight_gradient(x: Tensor, grad: Tensor, rows: int, padding: int, precision: str, per_split: int) -> Tensor:
    """See `client_conv.conv_weight`."""
    k, batch, height, width, channels = x.shape
    out_h, out_w, outputs = grad.shape[2:]
    m, red = batch * out_h * out_w, channels * rows * rows
    tiles, bn, bk, settings = _weight_tiles(outputs, red)
    splits = triton.cdiv(m, per_split)
    partial = torch.empty(splits, k, outputs * (red + 1), device=x.device)
    _weight_kernel[(tiles, splits, k)](
        x, grad, partial, batch, m, k, per_split,
        C=channels, H=height, W=width, CO=outputs, OH=out_h, OW=out_w, R=rows, PAD=padding, PRECISION=precision,
        PAIRS=precision == "tf32" and red > 80, BM=settings["BM"], BN=bn, BK=bk,
        num_warps=settings["num_warps"], num_stages=settings["num_stages"],
    )  # fmt: skip
    return partial
