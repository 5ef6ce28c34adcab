"""Devices: exact shares, papers' ranges, fixed streams."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motley.core.errors import DataError, InputError
from motley.core.keys import Key
from motley.fleet.devices import Affordable
from motley.fleet.layers import make_fleet

KEY = Key.root(5)


@given(
    n=st.integers(1, 300),
    shares=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5).filter(lambda s: sum(s) > 0.01),
)
def test_speed_classes_have_exact_shares(n: int, shares: list[float]) -> None:
    speeds = [float(i + 1) for i in range(len(shares))]
    fleet = make_fleet(f"speed_classes(shares={shares}, speeds={speeds})", n, KEY)
    counts = np.array([(fleet.flops == 1e10 * speed).sum() for speed in speeds])
    assert counts.sum() == n
    assert (np.abs(counts - np.array(shares) / sum(shares) * n) < 1.0).all()
    assert (fleet.up == 1e7).all()


def test_speed_classes_say_what_is_wrong() -> None:
    with pytest.raises(InputError, match="2 shares but 1 speeds"):
        make_fleet("speed_classes(shares=[0.5, 0.5], speeds=[1])", 5, KEY)
    with pytest.raises(InputError, match="speeds above 0"):
        make_fleet("speed_classes(shares=[1], speeds=[0])", 5, KEY)
    with pytest.raises(InputError, match="a list of numbers"):
        make_fleet("speed_classes(shares=0.5, speeds=[1])", 5, KEY)


def test_uniform_spread_is_uniform_and_in_proportion() -> None:
    fleet = make_fleet("uniform_spread(ratio=6)", 20_000, KEY)
    assert 5.9 < fleet.flops.max() / fleet.flops.min() <= 6.0
    np.testing.assert_allclose(fleet.flops / 1e10, fleet.up / 1e7)
    np.testing.assert_allclose(fleet.flops / 1e10, fleet.down / 1e7)
    counts = np.histogram(fleet.flops, bins=10, range=(1e10 / 6, 1e10))[0]
    np.testing.assert_allclose(counts, 2000, rtol=0.1)


@given(n=st.integers(1, 200), fraction=st.floats(0.0, 1.0))
def test_limited_is_an_exact_count(n: int, fraction: float) -> None:
    fleet = make_fleet(f"limited(fraction={fraction}, slowdown=2)", n, KEY)
    assert fleet.limited.sum() == round(fraction * n)
    np.testing.assert_array_equal(fleet.flops, np.where(fleet.limited, 5e9, 1e10))


def test_affordable_follows_its_moments() -> None:
    ids = np.arange(300)
    fleet = make_fleet("affordable(low=5, high=10)", 300, KEY)
    layer = fleet.fortune[0]
    assert isinstance(layer, Affordable)
    mean, deviation = layer.moments(ids)
    assert ((mean >= 5) & (mean < 10)).all()
    assert ((deviation >= mean / 4) & (deviation < mean / 2)).all()
    drawn = np.stack([fleet.fates(ids, t).affordable for t in range(1, 1001)])
    assert drawn.min() >= 0.0
    error = (drawn.mean(0) - mean) / (deviation / np.sqrt(1000))
    assert np.abs(error).max() < 5.0  # truncation at 0 lifts the mean by less than its standard error
    np.testing.assert_allclose(drawn.std(0), deviation, rtol=0.12)


def test_affordable_is_independent_over_rounds_and_clients() -> None:
    fleet = make_fleet("affordable", 2000, KEY)
    ids = np.arange(2000)
    mean, deviation = fleet.fortune[0].moments(ids)  # type: ignore[attr-defined]
    z = np.stack([(fleet.fates(ids, t).affordable - mean) / deviation for t in range(1, 21)])
    assert abs(np.corrcoef(z[:-1].ravel(), z[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(z[:, :-1].ravel(), z[:, 1:].ravel())[0, 1]) < 0.02


def capacity(tmp_path: Path, name: str, text: str | bytes) -> str:
    file = tmp_path / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(file)


ROWS = [{"computation": 100.0, "communication": 8000.0}, {"computation": 50.0, "communication": 16000.0}]


def test_capacity_trace_reads_json_and_csv_alike(tmp_path: Path) -> None:
    by_id = capacity(tmp_path, "a.json", json.dumps({"17": ROWS[0], "4": ROWS[1]}))
    as_list = capacity(tmp_path, "b.json", json.dumps(ROWS))
    as_csv = capacity(tmp_path, "c.csv", "client,computation,communication\n0,100,8000\n1,50,16000\n")
    for path in (by_id, as_list, as_csv):
        fleet = make_fleet(f"capacity_trace(path={path!r}, reference_flops=1e9)", 3, KEY)
        np.testing.assert_allclose(fleet.flops, [1e10, 2e10, 1e10])  # 1e9 FLOPs in 0.1 s, in 0.05 s
        np.testing.assert_allclose(fleet.up, [1e6, 2e6, 1e6])  # 8000 kbit/s are 1e6 bytes/s
        np.testing.assert_allclose(fleet.down, fleet.up)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.pkl", pickle.dumps(ROWS), "is a pickle"),
        ("client_device_capacity", pickle.dumps(ROWS), "is a pickle"),
        ("a.json", "{", "neither JSON nor CSV"),
        ("a.json", "[]", "records by client id"),
        ("a.json", '[{"computation": 1}]', "without 'communication'"),
        ("a.json", '[{"computation": "fast", "communication": 1}]', "not a number"),
        ("a.json", '[{"computation": 0, "communication": 1}]', "not above 0"),
    ],
)
def test_bad_capacity_files_are_refused(tmp_path: Path, name: str, content: str | bytes, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        make_fleet(f"capacity_trace(path={capacity(tmp_path, name, content)!r})", 3, KEY)


def test_missing_capacity_file() -> None:
    with pytest.raises(DataError, match="There is no trace file"):
        make_fleet("capacity_trace(path='nowhere.json')", 3, KEY)
