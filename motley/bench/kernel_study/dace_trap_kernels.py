"""Programs that show where DaCe goes wrong; see `dace_traps`. Imported in DaCe's own environment alone."""

import dace
import numpy as np

N, M, H, K = (dace.symbol(name, dtype=dace.int64) for name in ("N", "M", "H", "K"))
real = dace.float64


@dace.program
def map_range_map(alpha: real, beta: real, C: real[N, N], A: real[N, M]):
    for i in dace.map[0:N]:
        for j in dace.map[0 : i + 1]:
            C[i, j] *= beta
        for k in range(M):
            for j in dace.map[0 : i + 1]:
                C[i, j] += alpha * A[i, k] * A[j, k]


@dace.program
def index_of_both(x: real[H], w: real[K], out: real[H - K + 1]):
    for i in dace.map[0 : H - K + 1]:
        total = np.float64(0)
        for a in range(K):
            total += x[i + a] * w[a]
        out[i] = total


@dace.program
def twice(x: real[N], y: real[N]):
    y[:] = 2.0 * x
