"""Partitions: every sample at most once, requested sizes and classes, same seed same clients, sentences on failure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from motley.core.errors import InputError, PartitionError
from motley.core.keys import Key
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData, Partition
from motley.data.partition import PARTITIONS, make_partition


def toy(counts: list[int]) -> Dataset:
    """A data set with the given number of samples per class."""
    y = torch.from_numpy(np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts)))
    x = torch.arange(len(y)).float()[:, None]
    return Dataset("toy", x, y, x[:0], y[:0], len(counts))


class_counts = st.lists(st.integers(20, 200), min_size=2, max_size=8)
seeds = st.integers(0, 1000)


def make(spec: str, data: Dataset, clients: int | None, seed: int = 0) -> Partition:
    return make_partition(spec, data, clients, Key.root(seed))


def assert_disjoint(p: Partition, n: int) -> None:
    assert len(np.unique(p.index)) == len(p.index)
    assert p.index.min() >= 0
    assert p.index.max() < n


@settings(max_examples=40, deadline=None)
@given(counts=class_counts, clients=st.integers(1, 30), seed=seeds)
def test_iid_uses_everything_evenly(counts: list[int], clients: int, seed: int) -> None:
    data = toy(counts)
    p = make("iid", data, clients, seed)
    assert_disjoint(p, len(data))
    assert p.sizes.sum() == len(data)
    assert p.sizes.max() - p.sizes.min() <= 1


@settings(max_examples=60, deadline=None)
@given(counts=class_counts, clients=st.integers(1, 20), per_client=st.integers(1, 4), seed=seeds)
def test_classes_gives_exactly_so_many_classes(counts: list[int], clients: int, per_client: int, seed: int) -> None:
    data = toy(counts)
    if per_client > len(counts):
        with pytest.raises(PartitionError, match="per_client"):
            make(f"classes(per_client={per_client})", data, clients, seed)
        return
    p = make(f"classes(per_client={per_client})", data, clients, seed)
    labels = FederatedData(data, p).labels
    assert_disjoint(p, len(data))
    assert ((labels > 0).sum(1) == per_client).all()
    if clients * per_client >= len(counts):
        assert p.sizes.sum() == len(data)
    for column in labels.T:
        held = column[column > 0]
        assert len(held) == 0 or held.max() - held.min() <= 1


@settings(max_examples=60, deadline=None)
@given(
    counts=class_counts,
    clients=st.integers(1, 20),
    alpha=st.sampled_from([0.01, 0.1, 1.0, 100.0]),
    min_size=st.integers(0, 12),
    balance=st.booleans(),
    seed=seeds,
)
def test_dirichlet_keeps_minimum(
    counts: list[int], clients: int, alpha: float, min_size: int, balance: bool, seed: int
) -> None:
    data = toy(counts)
    spec = f"dirichlet(alpha={alpha}, min_size={min_size}, balance={balance})"
    if clients * min_size > len(data):
        with pytest.raises(PartitionError, match="min_size"):
            make(spec, data, clients, seed)
        return
    p = make(spec, data, clients, seed)
    assert_disjoint(p, len(data))
    assert p.sizes.sum() == len(data)
    assert p.sizes.min() >= max(min_size, 1)


def test_small_alpha_is_more_skewed() -> None:
    data = toy([300] * 10)

    def skew(alpha: float) -> float:
        labels = FederatedData(data, make(f"dirichlet(alpha={alpha})", data, 10)).labels
        return float(np.abs(labels / labels.sum(1, keepdims=True) - 0.1).sum(1).mean())

    assert skew(0.05) > skew(0.5) + 0.2 > skew(100.0) + 0.4


@pytest.mark.parametrize("spec", ["iid", "classes", "dirichlet(alpha=0.1)"])
def test_same_seed_same_clients(spec: str) -> None:
    data = toy([100] * 5)
    a, b, c = (make(spec, data, 7, seed) for seed in (3, 3, 4))
    assert np.array_equal(a.index, b.index)
    assert np.array_equal(a.offsets, b.offsets)
    assert not np.array_equal(a.index, c.index)


def test_classes_mixes_pairs() -> None:
    data = toy([200] * 10)
    labels = FederatedData(data, make("classes", data, 100)).labels
    assert len(np.unique(labels > 0, axis=0)) > 25


@pytest.mark.parametrize(
    ("spec", "clients", "words"),
    [
        ("iid", 0, "at least 1"),
        ("iid", None, "clients=N"),
        ("iid", 1000, "use fewer clients"),
        ("classes(per_client=2)", 150, "use fewer clients"),
        ("dirichlet(alpha=0)", 3, "alpha > 0"),
        ("dirichlet(min_size=200)", 3, "lower min_size"),
        ("iid+classes", 3, "one partition"),
    ],
)
def test_sentences(spec: str, clients: int | None, words: str) -> None:
    with pytest.raises(PartitionError, match=words):
        make(spec, toy([100, 100]), clients)


def test_unknown_argument() -> None:
    with pytest.raises(InputError, match="its arguments are: per_client"):
        make("classes(n=3)", toy([10, 10]), 2)


def test_user_arguments_are_shown_without_internal_ones() -> None:
    for entry in PARTITIONS:
        assert not set(entry.parameters) & {"dataset", "clients", "key"}
        assert entry.summary.endswith("."), entry.name
