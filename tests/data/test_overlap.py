"""Partitions whose clients draw from one pool: numbers per client and class, clusters, samples in sequence."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motley.data.federated import FederatedData
from tests.data.test_partitions import make, seeds, toy


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(60, 90), min_size=5, max_size=8),
    clients=st.integers(1, 20),
    per_client=st.integers(1, 5),
    samples=st.integers(5, 55),
    seed=seeds,
)
def test_drawn_gives_each_client_its_number(
    counts: list[int], clients: int, per_client: int, samples: int, seed: int
) -> None:
    data = toy(counts)
    p = make(f"drawn(per_client={per_client}, samples={samples})", data, clients, seed)
    labels = FederatedData(data, p).labels
    assert p.shared
    assert (p.sizes == samples).all()
    assert ((labels > 0).sum(1) == per_client).all()
    held = np.where(labels > 0, labels, samples)
    assert (labels.max(1) - held.min(1) <= 1).all()


@pytest.mark.parametrize("clients", [6, 40])
def test_samples_in_sequence_come_round_evenly(clients: int) -> None:
    """A class is used up before any of its samples is handed out again, and no client holds one twice."""
    data = toy([70, 90, 80])
    p = make("drawn(per_client=2, samples=60, in_sequence=true)", data, clients)
    plain = make("drawn(per_client=2, samples=60)", data, clients)
    times = np.bincount(p.index, minlength=240)
    for c in range(3):
        used = times[data.y.numpy() == c]
        assert used.max() - used.min() <= 1
    assert all(len(np.unique(p.index[a:b])) == b - a for a, b in pairwise(p.offsets))
    assert (FederatedData(data, p).labels == FederatedData(data, plain).labels).all()  # the classes stay
    assert not np.array_equal(np.sort(p.index), np.sort(plain.index))


def test_clustered_sets_clusters() -> None:
    data = toy([600] * 10)
    p = make("clustered(samples=300)", data, 20)
    labels = FederatedData(data, p).labels
    assert p.clusters is not None
    assert p.clusters.tolist() == np.repeat(np.arange(5), 4).tolist()
    assert ((labels > 0).sum(1) == np.repeat([2, 2, 3, 3, 5], 4)).all()
