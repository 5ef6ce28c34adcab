"""Array kernels: what DaCe's authors and those who re-ran them measure, written anew, with answers in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import Generator

from motley.bench.kernel_study.study_case import Array, Inputs, Size, case, share_of_mismatches

ALPHA, BETA = 1.5, 0.8


def sized(keys: str, tiny: tuple[int, ...], small: tuple[int, ...], medium: tuple[int, ...]) -> Mapping[str, Size]:
    """The three sizes of a kernel, by the letters of its dimensions."""
    names = keys.split()
    return {
        name: dict(zip(names, numbers, strict=True))
        for name, numbers in (("tiny", tiny), ("small", small), ("medium", medium))
    }


def _syrk(size: Size, rng: Generator) -> Inputs:
    n, m = size["N"], size["M"]
    return {"alpha": ALPHA, "beta": BETA, "C": rng.standard_normal((n, n)), "A": rng.standard_normal((n, m))}


@case(
    "array",
    "lower triangle of alpha A A' + beta C",
    sized("N M", (9, 7), (50, 70), (150, 200)),
    _syrk,
    lambda s: 8.0 * (s["N"] * s["M"] + s["N"] ** 2),
)
def syrk(alpha: float, beta: float, C: Array, A: Array) -> tuple[Array, ...]:
    lower = np.tri(len(C), dtype=bool)
    return (np.where(lower, alpha * (A @ A.T) + beta * C, C),)


def _gemm(size: Size, rng: Generator) -> Inputs:
    n, m, k = size["N"], size["M"], size["K"]
    A, B, C = (rng.standard_normal(shape) for shape in ((n, k), (k, m), (n, m)))
    return {"alpha": ALPHA, "beta": BETA, "C": C, "A": A, "B": B}


@case(
    "array",
    "alpha A B + beta C",
    sized("N M K", (7, 5, 9), (96, 112, 128), (448, 512, 576)),
    _gemm,
    lambda s: 8.0 * (s["N"] * s["K"] + s["K"] * s["M"] + 2 * s["N"] * s["M"]),
)
def gemm(alpha: float, beta: float, C: Array, A: Array, B: Array) -> tuple[Array, ...]:
    return (alpha * np.einsum("nk,km->nm", A, B, optimize=True) + beta * C,)


def _atax(size: Size, rng: Generator) -> Inputs:
    return {"A": rng.standard_normal((size["N"], size["M"])), "x": rng.standard_normal(size["M"])}


@case(
    "array",
    "A' (A x)",
    sized("N M", (7, 9), (400, 500), (2000, 2500)),
    _atax,
    lambda s: 8.0 * s["N"] * s["M"],
)
def atax(A: Array, x: Array) -> tuple[Array, ...]:
    return (A.T @ (A @ x),)


def _bicg(size: Size, rng: Generator) -> Inputs:
    n, m = size["N"], size["M"]
    return {"A": rng.standard_normal((n, m)), "p": rng.standard_normal(m), "r": rng.standard_normal(n)}


@case(
    "array",
    "A' r and A p",
    sized("N M", (7, 9), (400, 500), (2000, 2500)),
    _bicg,
    lambda s: 8.0 * s["N"] * s["M"],
)
def bicg(A: Array, p: Array, r: Array) -> tuple[Array, ...]:
    return A.T @ r, A @ p


def _durbin(size: Size, rng: Generator) -> Inputs:
    n = size["N"]
    return {"r": 0.2 / np.arange(1, n + 1) ** 2 * (1.0 + 0.1 * rng.random(n))}  # the diagonal of 1 dominates


@case(
    "array",
    "Toeplitz system, one unknown more in every step",
    sized("N", (9,), (300,), (1500,)),
    _durbin,
    lambda s: 8.0 * s["N"] ** 2,
    more_threads=True,
)
def durbin(r: Array) -> tuple[Array, ...]:
    n = len(r)
    gap = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    toeplitz = np.concatenate([[1.0], r])[gap]
    return (np.linalg.solve(toeplitz, -r),)


def _jacobi(size: Size, rng: Generator) -> Inputs:
    shape = (size["N"], size["N"])
    return {"steps": size["T"], "A": rng.standard_normal(shape), "B": rng.standard_normal(shape)}


@case(
    "array",
    "mean of five neighbours, to and fro between two arrays",
    sized("T N", (3, 9), (50, 100), (80, 400)),
    _jacobi,
    lambda s: 8.0 * 4 * s["T"] * s["N"] ** 2,
    more_threads=True,
)
def jacobi_2d(steps: int, A: Array, B: Array) -> tuple[Array, ...]:
    def spread(X: Array, Y: Array) -> Array:
        mean = 0.2 * (X + np.roll(X, 1, 0) + np.roll(X, -1, 0) + np.roll(X, 1, 1) + np.roll(X, -1, 1))
        return np.pad(mean[1:-1, 1:-1], 1) + _rim(Y)

    for _ in range(steps):
        B = spread(A, B)
        A = spread(B, A)
    return A, B


def _rim(X: Array) -> Array:
    """An array with nothing inside its border."""
    kept = X.copy()
    kept[(slice(1, -1),) * X.ndim] = 0.0
    return kept


def _heat(size: Size, rng: Generator) -> Inputs:
    shape = (size["N"],) * 3
    return {"steps": size["T"], "A": rng.standard_normal(shape), "B": rng.standard_normal(shape)}


@case(
    "array",
    "heat in three dimensions, to and fro between two arrays",
    sized("T N", (2, 7), (20, 20), (40, 50)),
    _heat,
    lambda s: 8.0 * 4 * s["T"] * s["N"] ** 3,
)
def heat_3d(steps: int, A: Array, B: Array) -> tuple[Array, ...]:
    def warm(X: Array, Y: Array) -> Array:
        bent = sum(np.roll(X, 1, axis) - 2.0 * X + np.roll(X, -1, axis) for axis in range(3))
        return np.pad((X + 0.125 * bent)[1:-1, 1:-1, 1:-1], 1) + _rim(Y)

    for _ in range(steps):
        B = warm(A, B)
        A = warm(B, A)
    return A, B


def _spmv(size: Size, rng: Generator) -> Inputs:
    """Rows of unequal length, some of them empty."""
    n, m = size["N"], size["M"]
    counts = rng.integers(0, 2 * size["PER"] + 1, n)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    total = int(starts[-1])
    return {"starts": starts, "columns": rng.integers(0, m, total), "values": rng.standard_normal(total),
            "x": rng.standard_normal(m)}  # fmt: skip


@case(
    "array",
    "sparse matrix (CSR) times vector",
    sized("N M PER", (9, 11, 3), (2000, 2000, 8), (20_000, 20_000, 20)),
    _spmv,
    lambda s: 16.0 * s["N"] * s["PER"] + 16.0 * s["N"] + 8.0 * s["M"],
)
def spmv(starts: Array, columns: Array, values: Array, x: Array) -> tuple[Array, ...]:
    row = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return (np.bincount(row, weights=values * x[columns], minlength=len(starts) - 1),)


def _mandelbrot(size: Size, rng: Generator) -> Inputs:
    x, y = np.linspace(-2.25, 0.75, size["N"]), np.linspace(-1.25, 1.25, size["N"])
    return {"x": x, "y": y, "steps": size["T"]}


@case(
    "array",
    "steps until a point of the plane escapes; at most 2 % of them may differ, by rounding",
    sized("N T", (11, 20), (100, 50), (300, 100)),
    _mandelbrot,
    lambda s: 8.0 * s["N"] ** 2,
    tolerance=0.02,
    error=share_of_mismatches,
)
def mandelbrot(x: Array, y: Array, steps: int) -> tuple[Array, ...]:
    c = x[None, :] + 1j * y[:, None]
    z, count = np.zeros_like(c), np.zeros(c.shape, np.int64)
    for _ in range(steps):
        inside = np.abs(z) <= 2.0
        count += inside
        z = np.where(inside, z * z + c, z)
    return (count,)


def _positive(size: Size, rng: Generator) -> Inputs:
    n = size["N"]
    A = rng.standard_normal((n, n))
    return {"A": A @ A.T + n * np.eye(n)}


_MATRIX: dict[str, Any] = {"make": _positive, "traffic": lambda s: 16.0 * s["N"] ** 2}


@case("array", "L of A = L L', scalar by scalar", sized("N", (9,), (80,), (240,)), **_MATRIX)
def cholesky(A: Array) -> tuple[Array, ...]:
    return (np.linalg.cholesky(A),)


@case("array", "the same by a library's call", sized("N", (9,), (80,), (240,)), **_MATRIX)
def cholesky2(A: Array) -> tuple[Array, ...]:
    return (np.linalg.cholesky(A),)


def _ludcmp(size: Size, rng: Generator) -> Inputs:
    n = size["N"]
    return {"A": rng.standard_normal((n, n)) + n * np.eye(n), "b": rng.standard_normal(n)}


@case(
    "array",
    "linear system by L U, scalar by scalar",
    sized("N", (9,), (60,), (180,)),
    _ludcmp,
    lambda s: 16.0 * s["N"] ** 2,
)
def ludcmp(A: Array, b: Array) -> tuple[Array, ...]:
    return (np.linalg.solve(A, b),)


def _conv2d(size: Size, rng: Generator) -> Inputs:
    images = rng.standard_normal((size["N"], size["H"], size["H"], size["I"])).astype(np.float32)
    weights = rng.standard_normal((size["K"], size["K"], size["I"], size["O"])).astype(np.float32)
    return {"images": images, "weights": weights}


@case(
    "array",
    "convolution of images, channels last, float32",
    sized("N H I O K", (2, 6, 2, 3, 3), (4, 16, 3, 8, 3), (8, 32, 3, 16, 5)),
    _conv2d,
    lambda s: 4.0 * s["N"] * (s["H"] ** 2 * s["I"] + (s["H"] - s["K"] + 1) ** 2 * s["O"]),
    tolerance=1e-5,
)
def conv2d(images: Array, weights: Array) -> tuple[Array, ...]:
    windows = np.lib.stride_tricks.sliding_window_view(images, weights.shape[:2], axis=(1, 2))
    return (np.einsum("nhwikl,klio->nhwo", windows, weights, optimize=True),)


def _softmax(size: Size, rng: Generator) -> Inputs:
    return {"x": rng.standard_normal((size["N"], size["H"], size["S"], size["S"])).astype(np.float32)}


@case(
    "array",
    "softmax of the last axis, float32",
    sized("N H S", (2, 1, 7), (4, 4, 64), (8, 8, 256)),
    _softmax,
    lambda s: 8.0 * s["N"] * s["H"] * s["S"] ** 2,
    tolerance=1e-5,
    more_threads=True,
)
def softmax(x: Array) -> tuple[Array, ...]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True),)


def _arc(size: Size, rng: Generator) -> Inputs:
    names = ("theta_1", "phi_1", "theta_2", "phi_2")
    return {name: rng.uniform(-0.5 * math.pi, 0.5 * math.pi, size["N"]) for name in names}


@case(
    "array",
    "distance of points on a sphere",
    sized("N", (13,), (20_000,), (500_000,)),
    _arc,
    lambda s: 40.0 * s["N"],
)
def arc_distance(theta_1: Array, phi_1: Array, theta_2: Array, phi_2: Array) -> tuple[Array, ...]:
    half = (
        np.sin(0.5 * (theta_2 - theta_1)) ** 2 + np.cos(theta_1) * np.cos(theta_2) * np.sin(0.5 * (phi_2 - phi_1)) ** 2
    )
    return (2.0 * np.arcsin(np.sqrt(np.minimum(half, 1.0))),)
