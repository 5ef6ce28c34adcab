"""Server kernels as loops that Numba compiles, as one writes them first. Imported only where they run.

Trimmed mean, median and top-k stand here as the obvious loop over parameters; the faster ones that Motley uses are in
`motley.server.row_kernels` and are measured as ways of their own. Masked mean and dequantisation go block by block and
four rows at a time, the quickest form found for them.
"""

import numpy as np
from numba import njit, prange

compiled = njit(parallel=True, error_model="numpy")
BLOCK = 1024
WIDE = 1 << 14


@compiled
def _add(total, row, weight):
    for p in prange(len(total)):
        total[p] += weight * row[p]


@njit(error_model="numpy")
def streaming_mean(rows, weights):
    total = np.zeros(rows.shape[1], np.float32)
    for k in range(len(rows)):
        _add(total, rows[k], weights[k])
    return total


@compiled
def batched_mean(rows, weights):
    n = rows.shape[1]
    total = np.zeros(n, np.float32)
    for block in prange((n + BLOCK - 1) // BLOCK):
        for k in range(len(rows)):
            for p in range(block * BLOCK, min(block * BLOCK + BLOCK, n)):
                total[p] += weights[k] * rows[k, p]
    return total


@njit(error_model="numpy")
def _add_rows(total, rows, factors, begin):
    """total += sum_k factors[k] rows[k, begin:], four rows at a time: the sum is read and written once for all four."""
    end = begin + len(total)
    in_fours = len(rows) - len(rows) % 4
    for k in range(0, in_fours, 4):
        fa, fb, fc, fd = factors[k], factors[k + 1], factors[k + 2], factors[k + 3]
        a, b, c, d = rows[k, begin:end], rows[k + 1, begin:end], rows[k + 2, begin:end], rows[k + 3, begin:end]
        for p in range(len(total)):
            total[p] += (fa * a[p] + fb * b[p]) + (fc * c[p] + fd * d[p])
    for k in range(in_fours, len(rows)):
        for p in range(len(total)):
            total[p] += factors[k] * rows[k, begin + p]


@compiled
def masked_mean(rows, weights, trained, bounds):
    out = np.zeros(rows.shape[1], np.float32)
    for layer in range(len(bounds) - 1):
        share = weights * trained[:, layer]
        total = share.sum()
        if total > 0:
            share /= total
        begin, end = bounds[layer], bounds[layer + 1]
        for block in prange((end - begin + WIDE - 1) // WIDE):
            first = begin + block * WIDE
            _add_rows(out[first : min(first + WIDE, end)], rows, share, first)
    return out


@compiled
def trimmed_mean(rows, trim):
    n = len(rows)
    out = np.empty(rows.shape[1], np.float32)
    for p in prange(rows.shape[1]):
        out[p] = np.sort(rows[:, p])[trim : n - trim].mean()
    return out


@compiled
def median(rows):
    n = len(rows)
    out = np.empty(rows.shape[1], np.float32)
    for p in prange(rows.shape[1]):
        ordered = np.sort(rows[:, p])
        out[p] = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return out


@compiled
def krum_distances(rows):
    n = len(rows)
    out = np.zeros((n, n), np.float32)
    for i in prange(n):
        for j in range(n):
            total = np.float32(0)
            for p in range(rows.shape[1]):
                gap = rows[i, p] - rows[j, p]
                total += gap * gap
            out[i, j] = total
    return out


@compiled
def dequantise_add(total, codes, scales):
    out = total.copy()
    for block in prange((len(out) + WIDE - 1) // WIDE):
        first = block * WIDE
        _add_rows(out[first : min(first + WIDE, len(out))], codes, scales, first)
    return out


@compiled
def clip_sum(rows, limit):
    n = rows.shape[1]
    factors = np.empty(len(rows), np.float32)
    for k in prange(len(rows)):
        square = 0.0
        for p in range(n):
            square += rows[k, p] * rows[k, p]
        factors[k] = min(1.0, limit / np.sqrt(square))
    return batched_mean(rows, factors)


@compiled
def top_k(rows, k):
    out = np.empty((len(rows), k), np.int64)
    for i in prange(len(rows)):
        out[i] = np.sort(np.argsort(np.abs(rows[i]))[-k:])
    return out


@compiled
def _signs(rows, places):
    codes = np.zeros(rows.shape, np.int8)
    means = np.empty(len(rows), np.float32)
    for i in prange(len(rows)):
        total = 0.0
        for p in places[i]:
            codes[i, p] = np.sign(rows[i, p])
            total += abs(rows[i, p])
        means[i] = total / places.shape[1]
    return codes, means


@njit(error_model="numpy")
def ternarise(rows, k):
    return _signs(rows, top_k(rows, k))
