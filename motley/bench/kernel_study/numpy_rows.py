"""Server kernels in NumPy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from motley.bench.kernel_study.study_case import Array


def streaming_mean(rows: Array, weights: Array) -> Array:
    total = np.zeros(rows.shape[1], np.float32)
    for row, weight in zip(rows, weights, strict=True):
        total += weight * row
    return total


def batched_mean(rows: Array, weights: Array) -> Array:
    return weights @ rows


def masked_mean(rows: Array, weights: Array, trained: Array, bounds: Array) -> Array:
    share = weights[:, None] * trained
    total = share.sum(0)
    share = np.where(total > 0, share / np.maximum(total, np.finfo(np.float32).tiny), np.float32(0))
    spans = pairwise(bounds)
    return np.concatenate([share[:, layer] @ rows[:, begin:end] for layer, (begin, end) in enumerate(spans)])


def trimmed_mean(rows: Array, trim: int) -> Array:
    return np.sort(rows, axis=0)[trim : len(rows) - trim].mean(0)


def median(rows: Array) -> Array:
    return np.median(rows, axis=0)


def krum_distances(rows: Array) -> Array:
    square = np.einsum("kp,kp->k", rows, rows)
    distances = square[:, None] + square - 2 * (rows @ rows.T)
    np.fill_diagonal(distances, 0)
    return np.maximum(distances, 0)


def dequantise_add(total: Array, codes: Array, scales: Array) -> Array:
    total = total.copy()
    for row, scale in zip(codes, scales, strict=True):
        total += scale * row
    return total


def clip_sum(rows: Array, limit: float) -> Array:
    lengths = np.linalg.norm(rows, axis=1)
    return np.minimum(1, limit / lengths).astype(np.float32) @ rows


def top_k(rows: Array, k: int) -> Array:
    return np.sort(np.argpartition(np.abs(rows), -k, axis=1)[:, -k:], axis=1)


def ternarise(rows: Array, k: int) -> tuple[Array, ...]:
    size = np.abs(rows)
    places = np.argpartition(size, -k, axis=1)[:, -k:]
    codes = np.zeros(rows.shape, np.int8)
    np.put_along_axis(codes, places, np.sign(np.take_along_axis(rows, places, 1)).astype(np.int8), 1)
    return codes, np.take_along_axis(size, places, 1).mean(1)
