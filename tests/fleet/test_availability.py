"""Availability: probabilities, persistence, clusters, days, traces, crashes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motley.core.errors import DataError, InputError
from motley.core.keys import Key
from motley.fleet.layers import make_fleet

KEY = Key.root(8)


def history(spec: str, n: int, rounds: int, **rest: object) -> np.ndarray:
    fleet = make_fleet(spec, n, KEY, **rest)  # type: ignore[arg-type]
    return np.stack([fleet.present(t, 0.0) for t in range(1, rounds + 1)])


def test_bernoulli_has_its_probability_and_no_memory() -> None:
    here = history("bernoulli(p=0.3)", 2000, 50)
    assert here.mean() == pytest.approx(0.3, abs=0.01)
    assert (here[:-1] & here[1:]).mean() == pytest.approx(0.09, abs=0.01)


@given(seed=st.integers(0, 10_000), n=st.integers(1, 5), p=st.sampled_from([0.0, 1e-9, 0.05]))
def test_at_least_one_is_there(seed: int, n: int, p: float) -> None:
    fleet = make_fleet(f"bernoulli(p={p})", n, Key.root(seed))
    assert fleet.present(1, 0.0).any()


def test_at_least_one_of_those_there_before() -> None:
    fleet = make_fleet("bernoulli(p=0.1)+bernoulli(p=0)", 50, KEY)
    first = make_fleet("bernoulli(p=0.1)", 50, KEY)
    for t in range(1, 30):
        here = fleet.present(t, 0.0)
        assert here.sum() == 1
        assert first.present(t, 0.0)[here].all()


def test_persistent_changes_only_between_blocks() -> None:
    here = history("persistent(p=0.5, rounds=4)", 500, 12)
    blocks = here.reshape(3, 4, 500)
    assert (blocks == blocks[:, :1]).all()
    assert 0.4 < (blocks[0, 0] != blocks[1, 0]).mean() < 0.6


def test_clustered_uses_the_partition_s_clusters() -> None:
    clusters = np.arange(3000) % 3
    here = history("clustered(p=[0.9, 0.5, 0.1])", 3000, 20, clusters=clusters)
    rates = [here[:, clusters == c].mean() for c in range(3)]
    np.testing.assert_allclose(rates, [0.9, 0.5, 0.1], atol=0.02)


def test_clustered_says_what_it_needs() -> None:
    with pytest.raises(InputError, match="this partition makes none"):
        make_fleet("clustered", 5, KEY)
    with pytest.raises(InputError, match="2 probabilities for 3 clusters"):
        make_fleet("clustered(p=[0.1, 0.2])", 3, KEY, clusters=np.arange(3))


def test_diurnal_swings_with_the_clock_and_holds_within_a_slot() -> None:
    fleet = make_fleet("diurnal(low=0.2, high=0.8, period=1000, spread=0, slot=10)", 5000, KEY)
    assert fleet.present(1, 0.0).mean() == pytest.approx(0.8, abs=0.03)
    assert fleet.present(1, 500.0).mean() == pytest.approx(0.2, abs=0.03)
    np.testing.assert_array_equal(fleet.present(1, 0.0), fleet.present(2, 0.001))
    assert (fleet.present(1, 0.0) != fleet.present(1, 1000.0)).mean() > 0.2
    world = make_fleet("diurnal(low=0.2, high=0.8, period=1000, slot=10)", 5000, KEY)
    assert world.present(1, 0.0).mean() == pytest.approx(0.5, abs=0.03)


def trace(tmp_path: Path, records: object) -> str:
    file = tmp_path / "behaviour.json"
    file.write_text(json.dumps(records))
    return str(file)


def test_availability_trace_follows_intervals_and_repeats(tmp_path: Path) -> None:
    records = {
        "a": {"active": [0, 60], "inactive": [20, 80], "finish_time": 100, "model": "x"},
        "b": {"active": [50], "inactive": [55], "finish_time": 60},
    }
    fleet = make_fleet(f"availability_trace(path={trace(tmp_path, records)!r})", 3, KEY)
    expected = {10: [1, 0, 1], 52: [0, 1, 0], 70: [1, 0, 1], 90: [0, 0, 0], 112: [1, 1, 1], 172: [1, 1, 1]}
    for now, here in expected.items():
        assert fleet.present(1, float(now)).astype(int).tolist() == here, now


def test_availability_trace_from_csv(tmp_path: Path) -> None:
    file = tmp_path / "behaviour.csv"
    file.write_text("client,active,inactive,finish_time\n0,0 60,20 80,100\n1,50,55,60\n")
    fleet = make_fleet(f"availability_trace(path={str(file)!r})", 2, KEY)
    assert fleet.present(1, 70.0).tolist() == [True, False]
    assert fleet.present(1, 52.0).tolist() == [False, True]


def test_bad_availability_traces(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 times in 'active' but 2 in 'inactive'"):
        make_fleet(
            f"availability_trace(path={trace(tmp_path, [{'active': [1], 'inactive': [2, 3], 'finish_time': 9}])!r})",
            2,
            KEY,
        )
    with pytest.raises(DataError, match="without 'finish_time'"):
        make_fleet(f"availability_trace(path={trace(tmp_path, [{'active': [1], 'inactive': [2]}])!r})", 2, KEY)


def test_crash_loses_the_round_and_comes_back() -> None:
    fleet = make_fleet("crash(probability=0.1, rounds=3)", 4000, KEY)
    ids = np.arange(4000)
    crashed = np.stack([fleet.fates(ids, t).lost for t in range(1, 21)])
    here = np.stack([fleet.present(t, 0.0) for t in range(1, 21)])
    assert here[0].all()
    assert crashed.mean() == pytest.approx(0.1, abs=0.01)
    for t in range(20):
        np.testing.assert_array_equal(here[t], ~crashed[max(0, t - 3) : t].any(0))
    assert here[5:].mean() == pytest.approx(0.9**3, abs=0.01)
