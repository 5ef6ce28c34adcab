"""Array kernels as loops that Numba compiles; `prange` where iterations stand alone. Imported only where they run."""

import math

import numpy as np
from numba import njit, prange

compiled = njit(parallel=True, error_model="numpy")
alone = njit(error_model="numpy")


@compiled
def syrk(alpha, beta, C, A):
    out = C.copy()
    for i in prange(A.shape[0]):
        for j in range(i + 1):
            total = 0.0
            for k in range(A.shape[1]):
                total += A[i, k] * A[j, k]
            out[i, j] = beta * C[i, j] + alpha * total
    return out


@compiled
def gemm(alpha, beta, C, A, B):
    out = beta * C
    for i in prange(A.shape[0]):
        for k in range(A.shape[1]):
            factor = alpha * A[i, k]
            for j in range(B.shape[1]):
                out[i, j] += factor * B[k, j]
    return out


@compiled
def _times(A, x):
    out = np.empty(A.shape[0])
    for i in prange(A.shape[0]):
        total = 0.0
        for j in range(A.shape[1]):
            total += A[i, j] * x[j]
        out[i] = total
    return out


@compiled
def _times_turned(A, x):
    """By blocks of columns, so that no two threads write to one number."""
    n, m = A.shape
    out = np.zeros(m)
    for block in prange((m + 255) // 256):
        for i in range(n):
            for j in range(256 * block, min(256 * block + 256, m)):
                out[j] += x[i] * A[i, j]
    return out


@alone
def atax(A, x):
    return _times_turned(A, _times(A, x))


@alone
def bicg(A, p, r):
    return _times_turned(A, r), _times(A, p)


@alone
def durbin(r):
    n = len(r)
    y, z = np.empty(n), np.empty(n)
    alpha, beta = -r[0], 1.0
    y[0] = alpha
    for k in range(1, n):
        beta *= 1.0 - alpha * alpha
        total = r[k]
        for i in range(k):
            total += r[k - i - 1] * y[i]
        alpha = -total / beta
        for i in range(k):
            z[i] = y[i] + alpha * y[k - i - 1]
        y[:k] = z[:k]
        y[k] = alpha
    return y


@compiled
def _spread(X, Y):
    for i in prange(1, X.shape[0] - 1):
        for j in range(1, X.shape[1] - 1):
            Y[i, j] = 0.2 * (X[i, j] + X[i, j - 1] + X[i, j + 1] + X[i + 1, j] + X[i - 1, j])


@alone
def jacobi_2d(steps, A, B):
    A, B = A.copy(), B.copy()
    for _ in range(steps):
        _spread(A, B)
        _spread(B, A)
    return A, B


@compiled
def _warm(X, Y):
    for i in prange(1, X.shape[0] - 1):
        for j in range(1, X.shape[1] - 1):
            for k in range(1, X.shape[2] - 1):
                around = X[i + 1, j, k] + X[i - 1, j, k] + X[i, j + 1, k] + X[i, j - 1, k]
                Y[i, j, k] = 0.25 * X[i, j, k] + 0.125 * (around + X[i, j, k + 1] + X[i, j, k - 1])


@alone
def heat_3d(steps, A, B):
    A, B = A.copy(), B.copy()
    for _ in range(steps):
        _warm(A, B)
        _warm(B, A)
    return A, B


@compiled
def spmv(starts, columns, values, x):
    out = np.empty(len(starts) - 1)
    for i in prange(len(out)):
        total = 0.0
        for j in range(starts[i], starts[i + 1]):
            total += values[j] * x[columns[j]]
        out[i] = total
    return out


@compiled
def mandelbrot(x, y, steps):
    count = np.zeros((len(y), len(x)), np.int64)
    for i in prange(len(y)):
        for j in range(len(x)):
            re, im = 0.0, 0.0
            for _ in range(steps):
                if re * re + im * im > 4.0:
                    break
                count[i, j] += 1
                re, im = re * re - im * im + x[j], 2.0 * re * im + y[i]
    return count


@alone
def cholesky(A):
    L = np.zeros_like(A)
    for i in range(len(A)):
        for j in range(i + 1):
            total = A[i, j]
            for k in range(j):
                total -= L[i, k] * L[j, k]
            L[i, j] = math.sqrt(total) if i == j else total / L[j, j]
    return L


@alone
def cholesky2(A):
    return np.linalg.cholesky(A)


@alone
def _factorised(A):
    """L below the diagonal, U on it and above; row by row, so that the innermost loop runs along rows."""
    A = A.copy()
    n = len(A)
    for i in range(n):
        for k in range(i):
            A[i, k] /= A[k, k]
            for j in range(k + 1, n):
                A[i, j] -= A[i, k] * A[k, j]
    return A


@alone
def ludcmp(A, b):
    A = _factorised(A)
    n = len(A)
    x = b.copy()
    for i in range(n):
        for k in range(i):
            x[i] -= A[i, k] * x[k]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            x[i] -= A[i, k] * x[k]
        x[i] /= A[i, i]
    return x


@alone
def _window(images, weights, n, i, j, out):
    k, _, channels, outputs = weights.shape
    for a in range(k):
        for b in range(k):
            for c in range(channels):
                value = images[n, i + a, j + b, c]
                for o in range(outputs):
                    out[n, i, j, o] += value * weights[a, b, c, o]


@compiled
def conv2d(images, weights):
    extent = images.shape[1] - weights.shape[0] + 1
    out = np.zeros((len(images), extent, extent, weights.shape[3]), np.float32)
    for place in prange(len(images) * extent):
        n, i = place // extent, place % extent
        for j in range(extent):
            _window(images, weights, n, i, j, out)
    return out


@compiled
def softmax(x):
    rows = x.reshape(-1, x.shape[-1])
    out = np.empty_like(rows)
    for i in prange(len(rows)):
        top = rows[i].max()
        total = np.float32(0)
        for j in range(rows.shape[1]):
            out[i, j] = math.exp(rows[i, j] - top)
            total += out[i, j]
        for j in range(rows.shape[1]):
            out[i, j] /= total
    return out.reshape(x.shape)


@compiled
def arc_distance(theta_1, phi_1, theta_2, phi_2):
    out = np.empty_like(theta_1)
    for i in prange(len(out)):
        a, b = math.sin((theta_2[i] - theta_1[i]) / 2), math.sin((phi_2[i] - phi_1[i]) / 2)
        half = a * a + math.cos(theta_1[i]) * math.cos(theta_2[i]) * b * b
        out[i] = 2 * math.atan2(math.sqrt(half), math.sqrt(1 - half))
    return out
