"""Statistics of heterogeneity against hand-computed numbers and plain loops."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import time

import numpy as np
import pytest

from motley.core.errors import InputError
from motley.core.keys import Key
from motley.data import analytics
from motley.data.analytics import (
    c_score,
    classes_missed,
    cohorts_missing_a_class,
    describe,
    emd,
    gini,
    jensen_shannon,
    kullback_leibler,
    radfed_table_one,
)
from motley.data.datasets import load
from motley.data.downloads import find
from motley.data.federated import FederatedData
from motley.data.partitioning import make_partition

KEY = Key.root(0)
LABELS = np.array([[10, 0], [0, 30]])


def test_by_hand() -> None:
    assert gini(np.array([1, 1, 1])) == pytest.approx(0)
    assert gini(np.array([0, 0, 0, 8])) == pytest.approx(0.75)
    assert c_score(LABELS) == pytest.approx((1.5 + 0.5) / 2)
    assert emd(LABELS) == pytest.approx((1.5 * 10 + 0.5 * 30) / 40)
    assert jensen_shannon(LABELS, KEY) == pytest.approx(1.0)
    p, q = np.array([11, 1]) / 12, np.array([1, 31]) / 32
    both = (np.sum(p * np.log2(p / q)) + np.sum(q * np.log2(q / p))) / 2
    assert kullback_leibler(LABELS, KEY) == pytest.approx(both)


def test_identical_clients_have_no_distance() -> None:
    labels = np.tile([3, 4, 5], (6, 1))
    for number in (c_score(labels), emd(labels), jensen_shannon(labels, KEY), kullback_leibler(labels, KEY)):
        assert number == pytest.approx(0, abs=1e-12)


def test_cohorts_against_enumeration() -> None:
    labels = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [1, 0, 0, 0]])
    cohorts = list(itertools.combinations(range(5), 2))
    missed = [3 - (labels[list(c)].sum(0) > 0).sum() for c in cohorts]
    assert classes_missed(labels, 2) == pytest.approx(np.mean(missed) / 3)
    share = np.mean(np.array(missed) > 0)
    assert cohorts_missing_a_class(labels, 2, KEY) == pytest.approx(share, abs=3 * math.sqrt(0.25 / 2000))
    assert classes_missed(labels, 5) == 0
    with pytest.raises(InputError, match=r"1\.\.5"):
        classes_missed(labels, 6)


def test_sampled_pairs_agree_with_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.random.default_rng(0).poisson(3, (100, 5))
    whole = jensen_shannon(labels, KEY)
    monkeypatch.setattr(analytics, "PAIRS", 4000)
    assert jensen_shannon(labels, KEY) == pytest.approx(whole, rel=0.03)


def test_describe() -> None:
    dataset = load("digits")
    facts = describe(FederatedData(dataset, make_partition("classes", dataset, 20, KEY)), 5, KEY).as_dict()
    assert facts["clients"] == 20
    assert facts["samples"] == 1438
    assert facts["classes_per_client"] == 2
    assert facts["c_score"] == pytest.approx(1.6, abs=0.02)
    assert facts["cohorts_missing_a_class"] > 0.9
    even = describe(FederatedData(dataset, make_partition("iid", dataset, 20, KEY)), 5, KEY).as_dict()
    for name in ("c_score", "emd", "js", "kl", "classes_missed_by_cohort", "cohorts_missing_a_class"):
        assert even[name] < facts[name]


@pytest.mark.slow
def test_a_million_clients() -> None:
    """In a process of its own, so that memory is that of this task alone."""
    program = """
import resource
from motley.core.keys import Key
from motley.data.analytics import describe
from motley.data.datasets import load
from motley.data.federated import FederatedData
from motley.data.partitioning import make_partition
dataset, key = load("digits"), Key.root(0)
facts = describe(FederatedData(dataset, make_partition("drawn(samples=20)", dataset, 1_000_000, key)), 100, key)
print(facts.clients, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert time.monotonic() - start < 60
    clients, kibibytes = map(int, done.stdout.split())
    assert clients == 1_000_000
    assert kibibytes < 2 * 2**20


@pytest.mark.slow
@pytest.mark.skipif(find("mnist.npz") is None or find("cifar10_test.npz") is None, reason="needs MNIST and CIFAR-10")
def test_radfed_table_one() -> None:
    pytest.importorskip("osqp")
    for row in radfed_table_one(seeds=2):
        assert row.mean == row.paper[2]
        assert row.c_score == pytest.approx(row.paper[4], abs=0.06)
        assert row.std == pytest.approx(row.paper[3], rel=0.2)
