"""RADFed's partitioner: the QP, the random-rectangle walk, and the counts it keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from motley.core.keys import Key
from motley.data.analytics import c_score
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData
from motley.data.partitioning import make_partition
from motley.data.qp import Demand, bucketed, solve, walk

pytest.importorskip("osqp")


def demand(seed: int, clients: int = 4, features: bool = False) -> Demand:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(20, 60, clients)
    shape = (3, 2) if features else (3,)
    share = rng.dirichlet(np.ones(int(np.prod(shape))))
    available = np.floor(share * sizes.sum()).astype(np.int64)
    available[0] += sizes.sum() - available.sum()
    cells = np.array(list(np.ndindex(*shape)))
    category = (cells + np.concatenate([[0], np.cumsum(shape)[:-1]])).T
    targets = [rng.dirichlet(np.full(n, 0.3), clients) * sizes[:, None] for n in shape]
    return Demand(sizes, available, category, np.concatenate(targets, 1))


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_programme_finds_the_optimum(seed: int, features: bool) -> None:
    """Against a general-purpose solver on eq. 1 and eq. 2."""
    asked = demand(seed, features=features)
    shape = (len(asked.sizes), len(asked.available))

    def loss(flat: np.ndarray) -> float:
        table, total = flat.reshape(shape), 0.0
        for t in range(shape[0]):
            for g in range(asked.target.shape[1]):
                held = sum(table[t, u] for u in range(shape[1]) if g in asked.category[:, u])
                total += (held - asked.target[t, g]) ** 2
        return total

    sums = [
        {"type": "eq", "fun": lambda f: f.reshape(shape).sum(1) - asked.sizes},
        {"type": "eq", "fun": lambda f: f.reshape(shape).sum(0)[:-1] - asked.available[:-1]},
    ]
    start = np.outer(asked.sizes, asked.available) / asked.sizes.sum()
    best = minimize(loss, start.ravel(), bounds=[(0, None)] * start.size, constraints=sums, options={"maxiter": 500})
    found = solve(asked)
    assert np.allclose(found.sum(1), asked.sizes)
    assert np.allclose(found.sum(0), asked.available, atol=1e-3)
    assert asked.loss(found) == pytest.approx(loss(found.ravel()))
    assert asked.loss(found) <= best.fun * 1.01 + 0.5


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 500), clients=st.integers(2, 9), features=st.booleans(), xi=st.sampled_from([0.1, 3.0, 99.0])
)
def test_the_walk_keeps_sums_and_knows_its_loss(seed: int, clients: int, features: bool, xi: float) -> None:
    asked = demand(seed, clients, features)
    table = np.outer(asked.sizes, asked.available) / asked.sizes.sum()
    moved = walk(table, asked, 37, 0, xi, np.random.default_rng(seed))
    best = walk(table, asked, 37, 211, xi, np.random.default_rng(seed))
    for made in (moved, best):
        assert made.min() >= -1e-9
        assert np.allclose(made.sum(1), asked.sizes)
        assert np.allclose(made.sum(0), asked.available)
    assert not np.allclose(moved, table)


def plain_walk(
    table: np.ndarray, asked: Demand, burn_in: int, steps: list[tuple[int, int, int, int, float]], xi: float
):
    """Algorithm 3 as printed, one rectangle at a time."""
    a, best, h = table.copy(), table, np.inf
    for n, (i, j, k, m, u) in enumerate(steps):
        eps = u * min(a[i, j], a[k, m], xi)
        a[i, j] -= eps
        a[k, m] -= eps
        a[i, m] += eps
        a[k, j] += eps
        if n >= burn_in and asked.loss(a) < h:
            best, h = a.copy(), asked.loss(a)
    return best


@pytest.mark.parametrize("features", [False, True])
def test_the_walk_is_algorithm_3(features: bool) -> None:
    """The batched walk equals the plain loop over the same rectangles."""
    asked = demand(5, 7, features)
    table = solve(asked)
    T, U = table.shape
    half, burn_in, search = T // 2, 10, 50
    rng = np.random.default_rng(3)
    n = -(-(burn_in + search) // half)
    order = rng.permuted(np.broadcast_to(np.arange(T), (n, T)), axis=1)
    first = rng.integers(U, size=(n, half))
    second = (first + rng.integers(1, U, size=(n, half))) % U
    uniform = rng.random((n, half))
    steps = [
        (order[b, s], first[b, s], order[b, half + s], second[b, s], uniform[b, s])
        for b in range(n)
        for s in range(half)
    ][: burn_in + search]
    expected = plain_walk(table, asked, burn_in, steps, 2.0)
    assert np.allclose(walk(table, asked, burn_in, search, 2.0, np.random.default_rng(3)), expected)


def table_data(n: int = 3000, share: tuple[float, ...] = (0.5, 0.3, 0.15, 0.05)) -> Dataset:
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.choice(4, n, p=share))
    x = torch.from_numpy(rng.normal(0, 1, (n, 3)).astype(np.float32)) + y[:, None]
    return Dataset("toy", x, y, x[:0], y[:0], 4)


@pytest.mark.parametrize("spec", ["radfed(lam=0.1", "radfed(lam=0.1, theta=0.1, features=[0, 2], buckets=3"])
def test_every_sample_is_given_out(spec: str) -> None:
    data = table_data()
    p = make_partition(spec + ", burn_in=500, search=500, min_size=5)", data, 20, Key.root(1))
    assert np.array_equal(np.sort(p.index), np.arange(len(data)))
    assert p.sizes.min() >= 5
    assert p.sizes.std() > 50


def test_small_lambda_is_more_skewed() -> None:
    data = table_data(share=(0.25, 0.25, 0.25, 0.25))
    scores = []
    for lam in (0.05, 1.0, 100.0):
        p = make_partition(f"radfed(lam={lam}, burn_in=500, search=500)", data, 20, Key.root(1))
        scores.append(c_score(FederatedData(data, p).labels))
    assert scores[0] > scores[1] + 0.1 > scores[2] + 0.2


def test_features_follow_theta() -> None:
    data = table_data()
    place = bucketed(data.x[:, 1].numpy(), 4)
    skew = {}
    for theta in ("none", "0.05"):
        spec = f"radfed(lam=100, theta={theta}, features=[1], burn_in=500, search=500)"
        p = make_partition(spec, data, 20, Key.root(1))
        mixes = np.array([np.bincount(place[p[i]], minlength=4) / len(p[i]) for i in range(20)])
        skew[theta] = np.abs(mixes - 0.25).sum(1).mean()
    assert skew["0.05"] > 2 * skew["none"]


def test_buckets() -> None:
    assert np.bincount(bucketed(np.arange(100.0), 4)).tolist() == [25] * 4
    assert bucketed(np.array([5, 7, 5]), 4).tolist() == [0, 1, 0]
    assert bucketed(np.array([0] * 90 + list(range(1, 11))), 3).max() <= 2
