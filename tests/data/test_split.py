"""Splits by samples, within clients and by clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from motley.core.errors import DataError, PartitionError
from motley.core.keys import Key
from motley.data.datasets import load
from motley.data.federated import FederatedData
from motley.data.partitioning import make_partition
from motley.data.scaling import standardise
from motley.data.skew import make_skews
from motley.data.split import (
    by_clients,
    by_samples,
    client_folds,
    materialise,
    only_clients,
    pooled,
    within_clients,
)

KEY = Key.root(0)


def test_by_samples_takes_from_every_class() -> None:
    data = load("digits")
    made = by_samples(data, 0.25, KEY)
    assert len(made) + len(made.test_y) == len(data)
    assert torch.allclose(made.test_y.bincount() / data.y.bincount(), torch.tensor(0.25), atol=0.01)
    with pytest.raises(DataError, match="between 0 and 1"):
        by_samples(data, 1.5, KEY)


def test_pooled() -> None:
    data = load("synthetic")
    whole = pooled(data)
    assert len(whole) == len(data) + len(data.test_y)
    assert len(whole.test_y) == 0
    assert len(whole.groups["client"]) == len(whole)


@settings(max_examples=30, deadline=None)
@given(clients=st.integers(2, 60), seed=st.integers(0, 99), parts=st.sampled_from([(0.8, 0.2), (0.98, 0.01, 0.01)]))
def test_within_clients(clients: int, seed: int, parts: tuple[float, ...]) -> None:
    data = load("digits")
    whole = make_partition("dirichlet(alpha=0.3, min_size=3)", data, clients, Key.root(seed))
    made = within_clients(whole, parts, Key.root(seed))
    for i in range(clients):
        held = np.concatenate([part[i] for part in made])
        assert np.array_equal(np.sort(held), np.sort(whole[i]))
        assert min(len(part[i]) for part in made) >= 1
    exact = whole.sizes * parts[0]
    assert (np.abs(made[0].sizes - exact) <= len(parts) - 0.5).all()


def test_within_clients_sentences() -> None:
    whole = make_partition("size(partition_sizes=[1, 9])", load("digits"), None, KEY)
    with pytest.raises(PartitionError, match="Client 0 has 1 samples"):
        within_clients(whole, (0.5, 0.5), KEY)
    with pytest.raises(PartitionError, match="add up to 1"):
        within_clients(whole, (0.5, 0.6), KEY)


@pytest.mark.parametrize("inner", [False, True])
def test_client_folds(inner: bool) -> None:
    folds = client_folds(100, KEY, inner=inner)
    assert len(folds) == (20 if inner else 5)
    for fold in folds:
        assert (len(fold.train), len(fold.validation), len(fold.test)) == (60, 20, 20)
        assert np.array_equal(np.sort(np.concatenate(fold)), np.arange(100))
    tests = np.concatenate([fold.test for fold in folds])
    assert (np.bincount(tests) == (4 if inner else 1)).all()
    with pytest.raises(PartitionError, match=r"3\.\.4 folds"):
        client_folds(4, KEY)


@pytest.mark.parametrize("skew", ["", "local_standardise", "label_permutation"])
def test_by_clients(skew: str) -> None:
    dataset = load("digits")
    partition = make_partition("classes", dataset, 10, KEY)
    data = FederatedData(dataset, partition, make_skews(skew, dataset, partition, KEY))
    train, test = np.array([0, 3, 5]), np.array([9, 1])
    made = by_clients(data, train, test)
    assert made.n_clients == 3
    for new, old in enumerate(train):
        a, b = made.client(new), data.client(int(old))
        assert torch.allclose(a.x, b.x, atol=1e-5)
        assert torch.equal(a.y, b.y)
    seen = torch.cat([data.client(9).x, data.client(1).x])
    assert torch.allclose(made.dataset.inputs(made.dataset.test_x), seen, atol=1e-5)
    with pytest.raises(PartitionError, match="Client 3"):
        by_clients(data, train, np.array([3]))


def test_only_clients_keeps_clusters() -> None:
    p = make_partition("clustered(groups=[1, 2], samples=20)", load("digits"), 4, KEY)
    some = only_clients(p, np.array([3, 0]))
    assert some.clusters is not None
    assert some.clusters.tolist() == [1, 0]
    assert np.array_equal(some[0], p[3])


def test_materialise_keeps_overlap_apart() -> None:
    dataset = load("digits")
    partition = make_partition("drawn(samples=50)", dataset, 8, KEY)
    data = FederatedData(dataset, partition, make_skews("noise", dataset, partition, KEY))
    made = materialise(data)
    for i in range(8):
        assert torch.equal(made.client(i).x, data.client(i).x)


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_global_standardisation(name: str) -> None:
    data = standardise(load(name))
    x = data.inputs(data.x).transpose(0, 1).reshape(data.input_shape[0], -1)
    assert x.mean(1).abs().max() < 1e-4
    assert (x.std(1, correction=0) - 1).abs().max() < 1e-3
