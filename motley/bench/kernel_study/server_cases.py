"""Server kernels: what becomes of the updates of K clients with P parameters each, in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator

from motley.bench.kernel_study.array_cases import sized
from motley.bench.kernel_study.study_case import Array, Inputs, Size, case, largest_difference, share_of_mismatches

ROWS = sized("K P", (7, 45), (10, 20_000), (50, 400_000))
SPARSE = 100  # one parameter of so many is kept
TRIM = 10  # one client of so many is cut off on each side


def n_layers(p: int) -> int:
    return 3 if p < 1000 else 12


def layer_bounds(p: int) -> Array:
    """Where layers begin and end [L + 1]; each is longer than the one before."""
    n = n_layers(p)
    return (p * (np.arange(n + 1) / n) ** 2).astype(np.int64)


def rows_of(size: Size, rng: Generator) -> Array:
    """Changes of the weights [K, P]; clients differ in size."""
    scale = rng.uniform(0.5, 2.0, (size["K"], 1)).astype(np.float32)
    return rng.standard_normal((size["K"], size["P"]), dtype=np.float32) * scale


def _mean(size: Size, rng: Generator) -> Inputs:
    weights = rng.uniform(0.5, 1.5, size["K"])
    return {"rows": rows_of(size, rng), "weights": (weights / weights.sum()).astype(np.float32)}


def once(size: Size) -> float:
    """All rows are read, one row is written."""
    return 4.0 * (size["K"] + 1) * size["P"]


_SERVER: dict[str, Any] = {"group": "server", "sizes": ROWS, "tolerance": 1e-6, "traffic": once}


@case(
    what="mean of updates that come one by one", make=_mean, **{**_SERVER, "traffic": lambda s: 12.0 * s["K"] * s["P"]}
)
def streaming_mean(rows: Array, weights: Array) -> tuple[Array, ...]:
    return (weights @ rows,)


@case(what="mean of updates that are all there", make=_mean, **_SERVER)
def batched_mean(rows: Array, weights: Array) -> tuple[Array, ...]:
    return (weights @ rows,)


def _masked(size: Size, rng: Generator) -> Inputs:
    bounds = layer_bounds(size["P"])
    trained = rng.random((size["K"], len(bounds) - 1)) < 0.7
    trained[:, 0] = False  # nobody trained it
    return {"rows": rows_of(size, rng), "weights": rng.uniform(0.5, 1.5, size["K"]).astype(np.float32),
            "trained": trained.astype(np.float32), "bounds": bounds}  # fmt: skip


@case(what="mean of each layer over those who trained it", make=_masked, **_SERVER)
def masked_mean(rows: Array, weights: Array, trained: Array, bounds: Array) -> tuple[Array, ...]:
    share = weights[:, None] * trained
    total = share.sum(0)
    share = np.divide(share, total, out=np.zeros_like(share), where=total > 0)
    return (np.einsum("kp,kp->p", np.repeat(share, np.diff(bounds), axis=1), rows),)


def _trimmed(size: Size, rng: Generator) -> Inputs:
    return {"rows": rows_of(size, rng), "trim": max(1, size["K"] // TRIM)}


@case(what="mean without the largest and the smallest tenth", make=_trimmed, **_SERVER)
def trimmed_mean(rows: Array, trim: int) -> tuple[Array, ...]:
    return (np.sort(rows, axis=0)[trim : len(rows) - trim].mean(0),)


def _rows(size: Size, rng: Generator) -> Inputs:
    return {"rows": rows_of(size, rng)}


@case(what="median of each parameter", make=_rows, **_SERVER)
def median(rows: Array) -> tuple[Array, ...]:
    ordered, half = np.sort(rows, axis=0), len(rows) // 2
    return (0.5 * (ordered[(len(rows) - 1) // 2] + ordered[half]),)


@case(what="squared distances of all pairs of updates (Krum)", make=_rows, **{**_SERVER, "tolerance": 1e-3})
def krum_distances(rows: Array) -> tuple[Array, ...]:
    square = (rows * rows).sum(1)
    distances = square[:, None] + square - 2.0 * (rows @ rows.T)  # enough digits are left in float64
    np.fill_diagonal(distances, 0.0)
    return (distances,)


def _quantised(size: Size, rng: Generator) -> Inputs:
    codes = rng.integers(-127, 128, (size["K"], size["P"]), dtype=np.int8)
    scales = rng.uniform(0.001, 0.002, size["K"]).astype(np.float32)
    return {"total": rng.standard_normal(size["P"], dtype=np.float32), "codes": codes, "scales": scales}


@case(
    what="add updates of one byte per parameter to a sum",
    make=_quantised,
    **{**_SERVER, "traffic": lambda s: (s["K"] + 8.0) * s["P"]},
)
def dequantise_add(total: Array, codes: Array, scales: Array) -> tuple[Array, ...]:
    return (total + scales @ codes.astype(np.float64),)


def _clipped(size: Size, rng: Generator) -> Inputs:
    return {"rows": rows_of(size, rng), "limit": float(np.sqrt(size["P"]))}  # about half of them are longer


@case(what="sum of updates cut to a length", make=_clipped, **{**_SERVER, "tolerance": 1e-5})
def clip_sum(rows: Array, limit: float) -> tuple[Array, ...]:
    lengths = np.linalg.norm(rows, axis=1)
    return (np.minimum(1.0, limit / lengths) @ rows,)


def _sparse(size: Size, rng: Generator) -> Inputs:
    return {"rows": rows_of(size, rng), "k": max(1, size["P"] // SPARSE)}


@case(
    what="places of the largest hundredth of every update",
    make=_sparse,
    **{**_SERVER, "error": share_of_mismatches, "tolerance": 0.0, "traffic": lambda s: 4.0 * s["K"] * s["P"]},
)
def top_k(rows: Array, k: int) -> tuple[Array, ...]:
    order = np.argsort(-np.abs(rows), axis=1, kind="stable")
    return (np.sort(order[:, :k], axis=1),)


@case(
    what="largest hundredth of every update as -1, 0, 1, and its mean size",
    make=_sparse,
    **{**_SERVER, "error": largest_difference, "traffic": lambda s: 5.0 * s["K"] * s["P"]},
)
def ternarise(rows: Array, k: int) -> tuple[Array, ...]:
    (places,) = top_k(rows, k)
    codes = np.zeros(rows.shape)
    np.put_along_axis(codes, places, np.sign(np.take_along_axis(rows, places, 1)), 1)
    return codes, np.abs(np.take_along_axis(rows, places, 1)).mean(1)
