"""Loops over clients' updates that Numba compiles when they are first called; kept on disk afterwards.

Imported only where they run. Each works on the columns from begin to end (or on some rows), without holding the
interpreter's lock, so that threads can share the columns among them.
"""

import numpy as np
from numba import njit

compiled = njit(nogil=True, cache=True, error_model="numpy")


@compiled
def _fill(values, row):
    """Copies a piece of a row; how many numbers in it are NaN."""
    bad = 0
    for c in range(values.size):
        value = row[c]
        values[c] = value
        bad += value != value  # noqa: PLR0124 (NaN)
    return bad


@compiled
def _hide(values, missing):
    """NaN becomes infinity, and is counted."""
    for c in range(values.size):
        if values[c] != values[c]:
            missing[c] += 1
            values[c] = np.inf


@compiled
def _exchange(smaller, larger):
    for c in range(smaller.size):
        a, b = smaller[c], larger[c]
        smaller[c] = a if a < b else b
        larger[c] = b if a < b else a


@compiled
def _add(total, values):
    for c in range(total.size):
        total[c] += values[c]


@compiled
def _sort(block, rows, pairs, begin, width, missing):
    """Brings a block of columns through the network; whether there is any NaN in it."""
    bad = 0
    for k in range(rows.shape[0]):
        bad += _fill(block[k, :width], rows[k, begin : begin + width])
    missing[:] = 0
    if bad > 0:
        for k in range(rows.shape[0]):
            _hide(block[k, :width], missing)
    for pair in range(pairs.shape[0]):
        _exchange(block[pairs[pair, 0], :width], block[pairs[pair, 1], :width])
    return bad > 0


@compiled
def middle_mean(rows, pairs, low, high, out, begin, end, block_width):
    n = rows.shape[0]
    block = np.empty((n, block_width), rows.dtype)
    total = np.empty(block_width, np.float64)
    missing = np.empty(block_width, np.int64)
    for start in range(begin, end, block_width):
        width = min(block_width, end - start)
        unsound = _sort(block, rows, pairs, start, width, missing)
        total[:] = 0.0
        for k in range(low, high):
            _add(total[:width], block[k, :width])
        for c in range(width):
            out[start + c] = total[c] / (high - low)
            if unsound and missing[c] > n - high:
                out[start + c] = np.nan


@compiled
def _cut(sizes, k, n_bits):
    """The k-th largest of whole numbers that are not negative, and how many equal to it are among the k; by digits."""
    known, left = np.int64(0), k
    shift = n_bits
    while shift > 0:
        width = min(11, shift)
        above, shift = shift, shift - width
        counts = np.zeros(1 << width, np.int64)
        for i in range(sizes.size):
            size = np.int64(sizes[i])
            if above == n_bits or size >> above == known:
                counts[(size >> shift) & ((1 << width) - 1)] += 1
        digit = (1 << width) - 1
        while counts[digit] < left:
            left -= counts[digit]
            digit -= 1
        known = (known << width) | digit
    return known, left


@compiled
def _near(bits, sign, limit, places, sizes):
    """Places and sizes of all entries that are not below the limit; as many as there is room for."""
    n = 0
    for i in range(bits.size):
        size = bits[i] & sign
        if size >= limit:
            if n < places.size:
                places[n], sizes[n] = i, size
            n += 1
    return n


@compiled
def top_k(bits, sign, limit, room, n_bits, out):
    """Places of the largest entries of one row; whether there were enough, and not too many, above the limit."""
    places, sizes = np.empty(room, np.int64), np.empty(room, bits.dtype)
    n = _near(bits, sign, limit, places, sizes)
    if n < out.size or n > room:
        return False
    cut, left = _cut(sizes[:n], out.size, n_bits)
    kept = 0
    for i in range(n):
        if sizes[i] > cut or (sizes[i] == cut and left > 0):
            left -= sizes[i] == cut
            out[kept] = places[i]
            kept += 1
    return True
