"""Array kernels in NumPy, as somebody writes them who knows it well: whole arrays where the algorithm has them."""

from __future__ import annotations

import numpy as np

from motley.bench.kernel_study.study_case import Array


def syrk(alpha: float, beta: float, C: Array, A: Array) -> Array:
    C = C.copy()
    for i in range(A.shape[0]):
        C[i, : i + 1] *= beta
        for k in range(A.shape[1]):
            C[i, : i + 1] += alpha * A[i, k] * A[: i + 1, k]
    return C


def gemm(alpha: float, beta: float, C: Array, A: Array, B: Array) -> Array:
    return alpha * (A @ B) + beta * C


def atax(A: Array, x: Array) -> Array:
    return (A @ x) @ A


def bicg(A: Array, p: Array, r: Array) -> tuple[Array, ...]:
    return r @ A, A @ p


def durbin(r: Array) -> Array:
    y = np.empty_like(r)
    alpha, beta = -r[0], 1.0
    y[0] = alpha
    for k in range(1, len(r)):
        beta *= 1.0 - alpha * alpha
        alpha = -(r[k] + np.dot(np.flip(r[:k]), y[:k])) / beta
        y[:k] += alpha * np.flip(y[:k])
        y[k] = alpha
    return y


def _spread(X: Array, Y: Array) -> None:
    Y[1:-1, 1:-1] = 0.2 * (X[1:-1, 1:-1] + X[1:-1, :-2] + X[1:-1, 2:] + X[2:, 1:-1] + X[:-2, 1:-1])


def jacobi_2d(steps: int, A: Array, B: Array) -> tuple[Array, ...]:
    A, B = A.copy(), B.copy()
    for _ in range(steps):
        _spread(A, B)
        _spread(B, A)
    return A, B


def _warm(X: Array, Y: Array) -> None:
    inner = X[1:-1, 1:-1, 1:-1]
    Y[1:-1, 1:-1, 1:-1] = (
        0.125 * (X[2:, 1:-1, 1:-1] - 2.0 * inner + X[:-2, 1:-1, 1:-1])
        + 0.125 * (X[1:-1, 2:, 1:-1] - 2.0 * inner + X[1:-1, :-2, 1:-1])
        + 0.125 * (X[1:-1, 1:-1, 2:] - 2.0 * inner + X[1:-1, 1:-1, :-2])
        + inner
    )


def heat_3d(steps: int, A: Array, B: Array) -> tuple[Array, ...]:
    A, B = A.copy(), B.copy()
    for _ in range(steps):
        _warm(A, B)
        _warm(B, A)
    return A, B


def spmv(starts: Array, columns: Array, values: Array, x: Array) -> Array:
    y = np.empty(len(starts) - 1)
    for i in range(len(y)):
        row = slice(starts[i], starts[i + 1])
        y[i] = values[row] @ x[columns[row]]
    return y


def mandelbrot(x: Array, y: Array, steps: int) -> Array:
    c = x + 1j * y[:, None]
    z = np.zeros_like(c)
    count = np.zeros(c.shape, np.int64)
    for _ in range(steps):
        inside = np.less_equal(z.real * z.real + z.imag * z.imag, 4.0)
        count[inside] += 1
        z[inside] = z[inside] ** 2 + c[inside]
    return count


def cholesky(A: Array) -> Array:
    A = A.copy()
    for i in range(len(A)):
        for j in range(i):
            A[i, j] = (A[i, j] - A[i, :j] @ A[j, :j]) / A[j, j]
        A[i, i] = np.sqrt(A[i, i] - A[i, :i] @ A[i, :i])
    return np.tril(A)


def cholesky2(A: Array) -> Array:
    return np.linalg.cholesky(A)


def ludcmp(A: Array, b: Array) -> Array:
    A = A.copy()
    n = len(A)
    for i in range(n):
        for j in range(i):
            A[i, j] = (A[i, j] - A[i, :j] @ A[:j, j]) / A[j, j]
        for j in range(i, n):
            A[i, j] -= A[i, :i] @ A[:i, j]
    x, y = np.empty_like(b), np.empty_like(b)
    for i in range(n):
        y[i] = b[i] - A[i, :i] @ y[:i]
    for i in range(n - 1, -1, -1):
        x[i] = (y[i] - A[i, i + 1 :] @ x[i + 1 :]) / A[i, i]
    return x


def conv2d(images: Array, weights: Array) -> Array:
    k, out = weights.shape[0], images.shape[1] - weights.shape[0] + 1
    made = np.empty((len(images), out, out, weights.shape[3]), np.float32)
    for i in range(out):
        for j in range(out):
            made[:, i, j] = np.sum(images[:, i : i + k, j : j + k, :, None] * weights, axis=(1, 2, 3))
    return made


def softmax(x: Array) -> Array:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def arc_distance(theta_1: Array, phi_1: Array, theta_2: Array, phi_2: Array) -> Array:
    half = np.sin((theta_2 - theta_1) / 2) ** 2 + np.cos(theta_1) * np.cos(theta_2) * np.sin((phi_2 - phi_1) / 2) ** 2
    return 2 * np.arctan2(np.sqrt(half), np.sqrt(1 - half))
