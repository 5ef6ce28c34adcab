"""Array kernels in Triton, for a GPU, where one kernel does what torch needs many for. Imported only where they run.

Products of matrices and factorisations are left to torch's libraries; scalar loops have nothing to offer to a GPU.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

BLOCK = 256


@triton.jit
def _spread(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i, j = place // n, place % n
    inner = (i > 0) & (i < n - 1) & (j > 0) & (j < n - 1)
    here = x_ptr + place
    total = tl.load(here, inner) + tl.load(here - 1, inner) + tl.load(here + 1, inner)
    total += tl.load(here + n, inner) + tl.load(here - n, inner)
    tl.store(y_ptr + place, total / 5.0, inner)


def jacobi_2d(steps, A, B):
    A, B, n = A.clone(), B.clone(), A.shape[0]
    grid = (triton.cdiv(n * n, BLOCK),)
    for _ in range(steps):
        _spread[grid](A, B, n, BLOCK)
        _spread[grid](B, A, n, BLOCK)
    return A, B


@triton.jit
def _warm(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i, j, k = place // (n * n), place // n % n, place % n
    inner = (i > 0) & (i < n - 1) & (j > 0) & (j < n - 1) & (k > 0) & (k < n - 1)
    here = x_ptr + place
    around = tl.load(here - 1, inner) + tl.load(here + 1, inner) + tl.load(here + n, inner) + tl.load(here - n, inner)
    around += tl.load(here + n * n, inner) + tl.load(here - n * n, inner)
    tl.store(y_ptr + place, 0.25 * tl.load(here, inner) + 0.125 * around, inner)


def heat_3d(steps, A, B):
    A, B, n = A.clone(), B.clone(), A.shape[0]
    grid = (triton.cdiv(n**3, BLOCK),)
    for _ in range(steps):
        _warm[grid](A, B, n, BLOCK)
        _warm[grid](B, A, n, BLOCK)
    return A, B


@triton.jit
def _row_times(starts_ptr, columns_ptr, values_ptr, x_ptr, out_ptr, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    begin, end = tl.load(starts_ptr + row), tl.load(starts_ptr + row + 1)
    total = tl.zeros((WIDTH,), tl.float64)
    while begin < end:
        place = begin + tl.arange(0, WIDTH)
        held = place < end
        column = tl.load(columns_ptr + place, held, 0)
        total += tl.load(values_ptr + place, held, 0.0) * tl.load(x_ptr + column, held, 0.0)
        begin += WIDTH
    tl.store(out_ptr + row, tl.sum(total))


def spmv(starts, columns, values, x):
    out = torch.empty(len(starts) - 1, dtype=values.dtype, device=values.device)
    _row_times[(len(out),)](starts, columns, values, x, out, 32, num_warps=1)
    return out


@triton.jit
def _escape(x_ptr, y_ptr, count_ptr, n, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held = place < n * n
    c_re, c_im = tl.load(x_ptr + place % n, held, 9.0), tl.load(y_ptr + place // n, held, 9.0)
    re, im = tl.zeros_like(c_re), tl.zeros_like(c_im)
    count = tl.zeros((BLOCK,), tl.int64)
    for _ in range(STEPS):
        inside = re * re + im * im <= 4.0
        count += inside.to(tl.int64)
        after = tl.where(inside, re * re - im * im + c_re, re)
        im = tl.where(inside, 2.0 * re * im + c_im, im)
        re = after
    tl.store(count_ptr + place, count, held)


def mandelbrot(x, y, steps):
    n = len(x)
    count = torch.empty(n, n, dtype=torch.int64, device=x.device)
    _escape[(triton.cdiv(n * n, BLOCK),)](x, y, count, n, steps, BLOCK)
    return count


@triton.jit
def _pixels(
    images_ptr, weights_ptr, out_ptr, height, outputs, extent, INPUTS: tl.constexpr, K: tl.constexpr,
    J: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    n, i = tl.program_id(0) // extent, tl.program_id(0) % extent
    j = tl.program_id(1) * J + tl.arange(0, J)
    o = tl.arange(0, CHANNELS)
    total = tl.zeros((J, CHANNELS), tl.float32)
    for a in range(K):
        for b in range(K):
            for c in range(INPUTS):
                pixel = ((n * height + i + a) * height + j + b) * INPUTS + c
                value = tl.load(images_ptr + pixel, j < extent, 0.0)
                weight = tl.load(weights_ptr + ((a * K + b) * INPUTS + c) * outputs + o, o < outputs, 0.0)
                total += value[:, None] * weight[None, :]
    place = ((n * extent + i) * extent + j)[:, None] * outputs + o[None, :]
    tl.store(out_ptr + place, total, (j < extent)[:, None] & (o < outputs)[None, :])


def conv2d(images, weights):
    n, height, _, inputs = images.shape
    k, _, _, outputs = weights.shape
    extent = height - k + 1
    out = torch.empty(n, extent, extent, outputs, dtype=images.dtype, device=images.device)
    grid = (n * extent, triton.cdiv(extent, 16))
    _pixels[grid](images, weights, out, height, outputs, extent, inputs, k, 16, triton.next_power_of_2(outputs))
    return out


@triton.jit
def _row_softmax(x_ptr, out_ptr, width, WIDTH: tl.constexpr):
    column = tl.arange(0, WIDTH)
    held = column < width
    place = tl.program_id(0).to(tl.int64) * width + column
    x = tl.load(x_ptr + place, held, -float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + place, e / tl.sum(e, 0), held)


def softmax(x):
    out = torch.empty_like(x)
    width = x.shape[-1]
    _row_softmax[(x.numel() // width,)](x, out, width, triton.next_power_of_2(width))
    return out


@triton.jit
def _arc(theta_1_ptr, phi_1_ptr, theta_2_ptr, phi_2_ptr, out_ptr, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held = place < n
    theta_1, theta_2 = tl.load(theta_1_ptr + place, held), tl.load(theta_2_ptr + place, held)
    phi_1, phi_2 = tl.load(phi_1_ptr + place, held), tl.load(phi_2_ptr + place, held)
    a, b = tl.sin(0.5 * (theta_2 - theta_1)), tl.sin(0.5 * (phi_2 - phi_1))
    half = a * a + tl.cos(theta_1) * tl.cos(theta_2) * b * b
    tl.store(out_ptr + place, 2.0 * libdevice.atan2(tl.sqrt(half), tl.sqrt(1.0 - half)), held)


def arc_distance(theta_1, phi_1, theta_2, phi_2):
    out = torch.empty_like(theta_1)
    _arc[(triton.cdiv(len(out), BLOCK),)](theta_1, phi_1, theta_2, phi_2, out, len(out), BLOCK)
    return out
