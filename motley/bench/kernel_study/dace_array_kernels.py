"""Array kernels as DaCe programs: with plain `range` (or whole arrays, as in NumPy), and with explicit maps.

Imported in DaCe's own environment alone. Programs write into the arrays they are given; sizes are symbols, so one
compiled program serves all sizes. Annotations must be objects here, not text, so they are not postponed.
"""

import dace
import numpy as np

# No symbol may be called I, O or S: sympy, to which DaCe hands them, has meanings of its own for these.
N, M, K, H, P, CI, CO, SM = (
    dace.symbol(name, dtype=dace.int64) for name in ("N", "M", "K", "H", "P", "CI", "CO", "SM")
)
real, single, whole = dace.float64, dace.float32, dace.int64


@dace.program
def syrk_range(alpha: real, beta: real, C: real[N, N], A: real[N, M]):
    for i in range(N):
        C[i, : i + 1] *= beta
        for k in range(M):
            C[i, : i + 1] += alpha * A[i, k] * A[: i + 1, k]


@dace.program
def syrk_map(alpha: real, beta: real, C: real[N, N], A: real[N, M]):
    for i in dace.map[0:N]:
        C[i, : i + 1] *= beta
        for k in range(M):
            C[i, : i + 1] += alpha * A[i, k] * A[: i + 1, k]


@dace.program
def gemm_range(alpha: real, beta: real, C: real[N, M], A: real[N, K], B: real[K, M], out: real[N, M]):
    out[:] = alpha * (A @ B) + beta * C


@dace.program
def gemm_map(alpha: real, beta: real, C: real[N, M], A: real[N, K], B: real[K, M], out: real[N, M]):
    for i in dace.map[0:N]:
        out[i, :] = beta * C[i, :]
        for k in range(K):
            out[i, :] += alpha * A[i, k] * B[k, :]


@dace.program
def atax_range(A: real[N, M], x: real[M], out: real[M]):
    out[:] = (A @ x) @ A


@dace.program
def atax_map(A: real[N, M], x: real[M], out: real[M]):
    inner = np.empty((N,), np.float64)
    for i in dace.map[0:N]:
        total = np.float64(0)
        for j in range(M):
            total += A[i, j] * x[j]
        inner[i] = total
    for b in dace.map[0 : (M + 255) // 256]:
        for j in range(256 * b, min(256 * b + 256, M)):
            out[j] = 0
        for i in range(N):
            for j in range(256 * b, min(256 * b + 256, M)):
                out[j] += inner[i] * A[i, j]


@dace.program
def bicg_range(A: real[N, M], p: real[M], r: real[N], s: real[M], q: real[N]):
    s[:] = r @ A
    q[:] = A @ p


@dace.program
def bicg_map(A: real[N, M], p: real[M], r: real[N], s: real[M], q: real[N]):
    for i in dace.map[0:N]:
        total = np.float64(0)
        for j in range(M):
            total += A[i, j] * p[j]
        q[i] = total
    for b in dace.map[0 : (M + 255) // 256]:
        for j in range(256 * b, min(256 * b + 256, M)):
            s[j] = 0
        for i in range(N):
            for j in range(256 * b, min(256 * b + 256, M)):
                s[j] += r[i] * A[i, j]


@dace.program
def durbin_range(r: real[N], y: real[N]):
    z = np.empty((N,), np.float64)
    alpha = -r[0]
    beta = np.float64(1)
    y[0] = -r[0]
    for k in range(1, N):
        beta *= 1.0 - alpha * alpha
        total = r[k]
        for i in range(k):
            total += r[k - i - 1] * y[i]
        alpha = -total / beta
        for i in range(k):
            z[i] = y[i] + alpha * y[k - i - 1]
        for i in range(k):
            y[i] = z[i]
        y[k] = alpha


@dace.program
def durbin_map(r: real[N], y: real[N]):
    z = np.empty((N,), np.float64)
    alpha = -r[0]
    beta = np.float64(1)
    y[0] = -r[0]
    for k in range(1, N):
        beta *= 1.0 - alpha * alpha
        for i in dace.map[0:k]:
            z[i] = r[k - i - 1] * y[i]
        alpha = -(r[k] + np.sum(z[:k])) / beta
        for i in dace.map[0:k]:
            z[i] = y[i] + alpha * y[k - i - 1]
        y[:k] = z[:k]
        y[k] = alpha


@dace.program
def jacobi_2d_range(steps: whole, A: real[N, N], B: real[N, N]):
    for _ in range(steps):
        B[1:-1, 1:-1] = 0.2 * (A[1:-1, 1:-1] + A[1:-1, :-2] + A[1:-1, 2:] + A[2:, 1:-1] + A[:-2, 1:-1])
        A[1:-1, 1:-1] = 0.2 * (B[1:-1, 1:-1] + B[1:-1, :-2] + B[1:-1, 2:] + B[2:, 1:-1] + B[:-2, 1:-1])


@dace.program
def jacobi_2d_map(steps: whole, A: real[N, N], B: real[N, N]):
    for _ in range(steps):
        for i, j in dace.map[1 : N - 1, 1 : N - 1]:
            B[i, j] = 0.2 * (A[i, j] + A[i, j - 1] + A[i, j + 1] + A[i + 1, j] + A[i - 1, j])
        for i, j in dace.map[1 : N - 1, 1 : N - 1]:
            A[i, j] = 0.2 * (B[i, j] + B[i, j - 1] + B[i, j + 1] + B[i + 1, j] + B[i - 1, j])


@dace.program
def heat_3d_range(steps: whole, A: real[N, N, N], B: real[N, N, N]):
    for _ in range(steps):
        B[1:-1, 1:-1, 1:-1] = (
            0.125 * (A[2:, 1:-1, 1:-1] - 2.0 * A[1:-1, 1:-1, 1:-1] + A[:-2, 1:-1, 1:-1])
            + 0.125 * (A[1:-1, 2:, 1:-1] - 2.0 * A[1:-1, 1:-1, 1:-1] + A[1:-1, :-2, 1:-1])
            + 0.125 * (A[1:-1, 1:-1, 2:] - 2.0 * A[1:-1, 1:-1, 1:-1] + A[1:-1, 1:-1, :-2])
            + A[1:-1, 1:-1, 1:-1]
        )
        A[1:-1, 1:-1, 1:-1] = (
            0.125 * (B[2:, 1:-1, 1:-1] - 2.0 * B[1:-1, 1:-1, 1:-1] + B[:-2, 1:-1, 1:-1])
            + 0.125 * (B[1:-1, 2:, 1:-1] - 2.0 * B[1:-1, 1:-1, 1:-1] + B[1:-1, :-2, 1:-1])
            + 0.125 * (B[1:-1, 1:-1, 2:] - 2.0 * B[1:-1, 1:-1, 1:-1] + B[1:-1, 1:-1, :-2])
            + B[1:-1, 1:-1, 1:-1]
        )


@dace.program
def heat_3d_map(steps: whole, A: real[N, N, N], B: real[N, N, N]):
    for _ in range(steps):
        for i, j, k in dace.map[1 : N - 1, 1 : N - 1, 1 : N - 1]:
            B[i, j, k] = 0.25 * A[i, j, k] + 0.125 * (
                A[i + 1, j, k] + A[i - 1, j, k] + A[i, j + 1, k] + A[i, j - 1, k] + A[i, j, k + 1] + A[i, j, k - 1]
            )
        for i, j, k in dace.map[1 : N - 1, 1 : N - 1, 1 : N - 1]:
            A[i, j, k] = 0.25 * B[i, j, k] + 0.125 * (
                B[i + 1, j, k] + B[i - 1, j, k] + B[i, j + 1, k] + B[i, j - 1, k] + B[i, j, k + 1] + B[i, j, k - 1]
            )


@dace.program
def spmv_range(starts: whole[N + 1], columns: whole[P], values: real[P], x: real[M], out: real[N]):
    for i in range(N):
        total = np.float64(0)
        for j in range(starts[i], starts[i + 1]):
            total += values[j] * x[columns[j]]
        out[i] = total


@dace.program
def spmv_map(starts: whole[N + 1], columns: whole[P], values: real[P], x: real[M], out: real[N]):
    for i in dace.map[0:N]:
        total = np.float64(0)
        for j in range(starts[i], starts[i + 1]):
            total += values[j] * x[columns[j]]
        out[i] = total


@dace.program
def mandelbrot_range(x: real[N], y: real[N], steps: whole, count: whole[N, N]):
    for i in range(N):
        for j in range(N):
            re = np.float64(0)
            im = np.float64(0)
            seen = np.int64(0)
            for _ in range(steps):
                if re * re + im * im <= 4.0:
                    seen += 1
                    after = re * re - im * im + x[j]
                    im = 2.0 * re * im + y[i]
                    re = after
            count[i, j] = seen


@dace.program
def mandelbrot_map(x: real[N], y: real[N], steps: whole, count: whole[N, N]):
    for i, j in dace.map[0:N, 0:N]:
        re = np.float64(0)
        im = np.float64(0)
        seen = np.int64(0)
        for _ in range(steps):
            if re * re + im * im <= 4.0:
                seen += 1
                after = re * re - im * im + x[j]
                im = 2.0 * re * im + y[i]
                re = after
        count[i, j] = seen


@dace.program
def cholesky_range(A: real[N, N]):
    for i in range(N):
        for j in range(i):
            for k in range(j):
                A[i, j] -= A[i, k] * A[j, k]
            A[i, j] /= A[j, j]
        for k in range(i):
            A[i, i] -= A[i, k] * A[i, k]
        A[i, i] = np.sqrt(A[i, i])


@dace.program
def cholesky_map(A: real[N, N]):
    for j in range(N):
        for k in range(j):
            A[j, j] -= A[j, k] * A[j, k]
        A[j, j] = np.sqrt(A[j, j])
        for i in dace.map[j + 1 : N]:
            total = A[i, j]
            for k in range(j):
                total -= A[i, k] * A[j, k]
            A[i, j] = total / A[j, j]


@dace.program
def cholesky2_range(A: real[N, N], out: real[N, N]):
    out[:] = np.linalg.cholesky(A)


@dace.program
def ludcmp_range(A: real[N, N], b: real[N], x: real[N]):
    for i in range(N):
        for j in range(i):
            for k in range(j):
                A[i, j] -= A[i, k] * A[k, j]
            A[i, j] /= A[j, j]
        for j in range(i, N):
            for k in range(i):
                A[i, j] -= A[i, k] * A[k, j]
    y = np.empty((N,), np.float64)
    for i in range(N):
        y[i] = b[i]
        for k in range(i):
            y[i] -= A[i, k] * y[k]
    for i in range(N - 1, -1, -1):
        x[i] = y[i]
        for k in range(i + 1, N):
            x[i] -= A[i, k] * x[k]
        x[i] /= A[i, i]


@dace.program
def conv2d_range(images: single[N, H, H, CI], weights: single[K, K, CI, CO], out: single[N, H - K + 1, H - K + 1, CO]):
    for i in range(H - K + 1):
        for j in range(H - K + 1):
            out[:, i, j, :] = np.sum(images[:, i : i + K, j : j + K, :, np.newaxis] * weights, axis=(1, 2, 3))


@dace.program
def conv2d_map(images: single[N, H, H, CI], weights: single[K, K, CI, CO], out: single[N, H - K + 1, H - K + 1, CO]):
    # The windows are copied first: of images[n, i + a, ...] with i of a map and a of a loop inside, DaCe drops the i.
    windows = np.empty((N, H - K + 1, H - K + 1, K, K, CI), np.float32)
    for n, i, j, a, b, c in dace.map[0:N, 0 : H - K + 1, 0 : H - K + 1, 0:K, 0:K, 0:CI]:
        windows[n, i, j, a, b, c] = images[n, i + a, j + b, c]
    for n, i, j, o in dace.map[0:N, 0 : H - K + 1, 0 : H - K + 1, 0:CO]:
        total = np.float32(0)
        for a in range(K):
            for b in range(K):
                for c in range(CI):
                    total += windows[n, i, j, a, b, c] * weights[a, b, c, o]
        out[n, i, j, o] = total


@dace.program
def softmax_range(x: single[N, H, SM, SM], out: single[N, H, SM, SM]):
    top = np.max(x, axis=-1)
    e = np.exp(x - top[:, :, :, np.newaxis])
    total = np.sum(e, axis=-1)
    out[:] = e / total[:, :, :, np.newaxis]


@dace.program
def softmax_map(x: single[N, H, SM, SM], out: single[N, H, SM, SM]):
    for n, h, i in dace.map[0:N, 0:H, 0:SM]:
        top = np.float32(-3e38)
        for j in range(SM):
            top = max(top, x[n, h, i, j])
        total = np.float32(0)
        for j in range(SM):
            out[n, h, i, j] = np.exp(x[n, h, i, j] - top)
            total += out[n, h, i, j]
        for j in range(SM):
            out[n, h, i, j] = out[n, h, i, j] / total


@dace.program
def arc_distance_range(theta_1: real[N], phi_1: real[N], theta_2: real[N], phi_2: real[N], out: real[N]):
    half = np.sin((theta_2 - theta_1) / 2) ** 2 + np.cos(theta_1) * np.cos(theta_2) * np.sin((phi_2 - phi_1) / 2) ** 2
    out[:] = 2 * np.arctan2(np.sqrt(half), np.sqrt(1 - half))


@dace.program
def arc_distance_map(theta_1: real[N], phi_1: real[N], theta_2: real[N], phi_2: real[N], out: real[N]):
    for i in dace.map[0:N]:
        a = np.sin((theta_2[i] - theta_1[i]) / 2)
        b = np.sin((phi_2[i] - phi_1[i]) / 2)
        half = a * a + np.cos(theta_1[i]) * np.cos(theta_2[i]) * b * b
        out[i] = 2 * np.arctan2(np.sqrt(half), np.sqrt(1 - half))
