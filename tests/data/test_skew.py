"""Skews: pure, vectorised over rows of many clients, picklable."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from motley.core.errors import DataError
from motley.core.keys import Key
from motley.data.datasets import load
from motley.data.federated import FederatedData
from motley.data.partitioning import make_partition
from motley.data.skew import SKEWS, make_skews
from tests import tiny

KEY = Key.root(0)


def federated(spec: str, data: str = "digits", clients: int = 6) -> FederatedData:
    dataset = load(data)
    partition = make_partition("iid", dataset, clients, KEY)
    return FederatedData(dataset, partition, make_skews(spec, dataset, partition, KEY))


@pytest.mark.parametrize("name", [entry.name for entry in SKEWS])
def test_rows_of_many_clients_at_once(name: str) -> None:
    """A mixed batch gives the same rows as client after client, again and again, and after pickling."""
    data = federated(name)
    rows = torch.arange(30)
    clients = torch.arange(30) % 6
    x, y = data.gather(rows, clients)
    assert x.shape == (30, 1, 8, 8)
    for i in range(6):
        own = clients == i
        x1, y1 = data.gather(rows[own], clients[own])
        assert torch.allclose(x[own], x1, atol=1e-5)
        assert torch.equal(y[own], y1)
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy.gather(rows, clients)[0], x)
    plain_x, plain_y = federated("").gather(rows, clients)
    assert not (torch.allclose(plain_x, x) and torch.equal(plain_y, y))


def test_rotation_by_right_angles_is_exact() -> None:
    data, plain = federated("rotation"), federated("")
    for i in range(4):
        x = plain.client(i).x
        assert torch.allclose(data.client(i).x, torch.rot90(x, i, (2, 3)), atol=1e-4)


def test_blur_keeps_means_and_lowers_contrast() -> None:
    data, plain = federated("blur(sigmas=[0, 1, 2])"), federated("")
    assert torch.allclose(data.client(0).x, plain.client(0).x, atol=1e-6)
    spread = [float(data.client(i).x.std() / plain.client(i).x.std()) for i in range(3)]
    assert spread[0] > spread[1] > spread[2]


def test_noise_has_its_level_and_stays_the_same() -> None:
    data, plain = federated("noise(levels=[0, 0.5])"), federated("")
    assert torch.equal(data.client(0).x, plain.client(0).x)
    difference = data.client(1).x - plain.client(1).x
    assert abs(float(difference.std()) - 0.5) < 0.02
    assert abs(float(difference.mean())) < 0.02
    assert torch.equal(data.client(1).x, data.client(1).x)
    assert not torch.allclose(difference[0], difference[1])


def test_label_permutation_by_cluster() -> None:
    dataset = load("digits")
    partition = make_partition("clustered(groups=[2, 3], samples=60)", dataset, 6, KEY)
    data = FederatedData(dataset, partition, make_skews("label_permutation", dataset, partition, KEY))
    plain = FederatedData(dataset, partition)
    assert torch.equal(data.client(0).y, plain.client(0).y)
    assert not torch.equal(data.client(5).y, plain.client(5).y)
    renamed = {int(a): int(b) for i in (3, 4, 5) for a, b in zip(plain.client(i).y, data.client(i).y, strict=True)}
    assert len(set(renamed.values())) == len(renamed)
    counted = np.stack([data.client(i).y.bincount(minlength=10).numpy() for i in range(6)])
    assert np.array_equal(data.labels, counted)


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_local_standardisation(name: str) -> None:
    data = federated("local_standardise", name)
    for i in range(6):
        x = data.client(i).x
        flat = x.transpose(0, 1).reshape(x.shape[1], -1)
        assert flat.mean(1).abs().max() < 1e-3
        assert (flat.std(1, correction=0) - 1).abs().max() < 1e-2


def test_skews_in_sequence_and_sentences() -> None:
    assert len(federated("rotation(degrees=[0, 45])+noise").transforms) == 2
    with pytest.raises(DataError, match="needs images"):
        federated("rotation", "synthetic")
    with pytest.raises(DataError, match="levels >= 0"):
        federated("noise(levels=[-1])")
    with pytest.raises(DataError, match="at least one cluster"):
        federated("label_permutation(clusters=0)")


def test_classes_cannot_be_renamed_where_there_are_none() -> None:
    whole = tiny.numbers()
    with pytest.raises(
        DataError, match="The skew 'label_permutation' needs classes, but the targets of 'tiny' are numb"
    ):
        make_skews("label_permutation", whole.dataset, whole.partition, KEY)
    assert make_skews("noise", whole.dataset, whole.partition, KEY)
