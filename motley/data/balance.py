"""How clients' classes are balanced with generated samples: whose generators, how many of what (GANDALF)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]

FLOOR = 1e-6  # share that stands for a class which a client has not, so that divergences are finite


def shares(counts: Vector) -> Vector:
    """Counts [..., C] as shares; even where there are none."""
    total = counts.sum(-1, keepdims=True)
    return np.where(total > 0, counts / np.where(total > 0, total, 1.0), 1.0 / counts.shape[-1])


def divergence(mixes: Vector, counts: Vector) -> Vector:
    """``D_KL(P_g || P_k)`` of each generator's mix [M, C] from a client's classes [C]: [M]."""
    p, q = shares(mixes), np.maximum(shares(counts), FLOOR)
    logs = np.log(p / q, out=np.zeros_like(p), where=p > 0)
    found: Vector = (p * logs).sum(-1)
    return found


def farthest(mixes: Vector, counts: Vector, each: int) -> list[int]:
    """The ``each`` generators whose mix is farthest from what a client has, the farthest first, the first of equals."""
    found: list[int] = np.argsort(-divergence(mixes, counts), kind="stable")[:each].tolist()
    return found


def lacking(counts: Vector, known: NDArray[np.bool_]) -> Vector:
    """``H``: samples that a client lacks of each class to have as many as of its largest; 0 where nobody has any."""
    return np.where(known, counts.max() - counts, 0.0)


def amounts(mixes: Vector, lack: Vector, tau: float) -> Ints:
    """``B = tau max(0, A^+ H)``, rounded: samples that each generator makes; columns of A are their mixes [J, C]."""
    a = shares(mixes).T
    return np.rint(tau * np.clip(np.linalg.pinv(a) @ lack, 0.0, None)).astype(np.int64)


def wanted(lack: Vector, tau: float) -> Ints:
    """How many samples of each class a client is to get: ``tau H``, rounded."""
    return np.rint(tau * lack).astype(np.int64)


def without_surplus(labels: Ints, at_most: Ints) -> Ints:
    """Places of the samples that stay: the first ``at_most[c]`` of each class c, in their order."""
    kept = [np.flatnonzero(labels == c)[:most] for c, most in enumerate(at_most)]
    return np.sort(np.concatenate(kept)) if kept else np.zeros(0, np.int64)


def to_fill(gap: Ints, sources: Ints, limit: float) -> Ints:
    """Samples of each class that static augmentation makes: the gap, at most ``limit`` times what there is."""
    return np.minimum(np.maximum(gap, 0), np.floor(limit * sources).astype(np.int64))
