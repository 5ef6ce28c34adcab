"""Server kernels as DaCe programs with explicit maps, and the means also as whole arrays.

Imported in DaCe's own environment alone; see `dace_array_kernels`. Order statistics count for each value how many come
before it: DaCe has no sorting, and ranks need no order between the iterations of a map. For `top_k` and `ternarise`
there is no program, since how much they write depends on the data.
"""

import dace
import numpy as np

K, P, L = (dace.symbol(name, dtype=dace.int64) for name in ("K", "P", "L"))
single, whole, byte = dace.float32, dace.int64, dace.int8


@dace.program
def streaming_mean_range(rows: single[K, P], weights: single[K], out: single[P]):
    out[:] = 0
    for k in range(K):
        out[:] += weights[k] * rows[k, :]


@dace.program
def streaming_mean_map(rows: single[K, P], weights: single[K], out: single[P]):
    for p in dace.map[0:P]:
        out[p] = 0
    for k in range(K):
        for p in dace.map[0:P]:
            out[p] = out[p] + weights[k] * rows[k, p]


@dace.program
def batched_mean_range(rows: single[K, P], weights: single[K], out: single[P]):
    out[:] = weights @ rows


@dace.program
def batched_mean_map(rows: single[K, P], weights: single[K], out: single[P]):
    for b in dace.map[0 : (P + 1023) // 1024]:
        for p in range(1024 * b, min(1024 * b + 1024, P)):
            out[p] = 0
        for k in range(K):
            for p in range(1024 * b, min(1024 * b + 1024, P)):
                out[p] += weights[k] * rows[k, p]


@dace.program
def masked_mean_map(
    rows: single[K, P], weights: single[K], trained: single[K, L], bounds: whole[L + 1], out: single[P]
):
    for layer in range(L):
        total = np.float32(0)
        for k in range(K):
            total += weights[k] * trained[k, layer]
        scale = np.float32(0)
        if total > 0:
            scale = np.float32(1) / total
        for p in dace.map[bounds[layer] : bounds[layer + 1]]:
            mean = np.float32(0)
            for k in range(K):
                mean += weights[k] * trained[k, layer] * rows[k, p]
            out[p] = mean * scale


@dace.program
def trimmed_mean_map(rows: single[K, P], trim: whole, out: single[P]):
    for p in dace.map[0:P]:
        total = np.float64(0)
        for i in range(K):
            rank = np.int64(0)
            for j in range(K):
                if rows[j, p] < rows[i, p] or (rows[j, p] == rows[i, p] and j < i):
                    rank += 1
            if rank >= trim and rank < K - trim:
                total += rows[i, p]
        out[p] = total / (K - 2 * trim)


@dace.program
def median_map(rows: single[K, P], out: single[P]):
    for p in dace.map[0:P]:
        total = np.float64(0)
        for i in range(K):
            rank = np.int64(0)
            for j in range(K):
                if rows[j, p] < rows[i, p] or (rows[j, p] == rows[i, p] and j < i):
                    rank += 1
            if 2 * rank == K - 1:
                total += 2 * rows[i, p]
            if 2 * rank == K - 2 or 2 * rank == K:
                total += rows[i, p]
        out[p] = 0.5 * total


@dace.program
def krum_distances_map(rows: single[K, P], out: single[K, K]):
    for i, j in dace.map[0:K, 0:K]:
        total = np.float64(0)
        for p in range(P):
            total += (rows[i, p] - rows[j, p]) * (rows[i, p] - rows[j, p])
        out[i, j] = total


@dace.program
def dequantise_add_map(total: single[P], codes: byte[K, P], scales: single[K], out: single[P]):
    for p in dace.map[0:P]:
        sum_of_rows = total[p]
        for k in range(K):
            sum_of_rows += scales[k] * codes[k, p]
        out[p] = sum_of_rows


@dace.program
def clip_sum_map(rows: single[K, P], limit: dace.float64, out: single[P]):
    factor = np.empty((K,), np.float32)
    for k in dace.map[0:K]:
        square = np.float64(0)
        for p in range(P):
            square += rows[k, p] * rows[k, p]
        factor[k] = min(1.0, limit / np.sqrt(square))
    for b in dace.map[0 : (P + 1023) // 1024]:
        for p in range(1024 * b, min(1024 * b + 1024, P)):
            out[p] = 0
        for k in range(K):
            for p in range(1024 * b, min(1024 * b + 1024, P)):
                out[p] += factor[k] * rows[k, p]
