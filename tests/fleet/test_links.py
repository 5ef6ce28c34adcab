"""Links: rates, delays in seconds and rounds, losses."""

from __future__ import annotations

import numpy as np
import pytest

from motley.core.errors import InputError
from motley.core.keys import Key
from motley.fleet.layers import make_fleet
from motley.fleet.timing import task_timing

KEY = Key.root(6)


def test_bandwidth_sets_and_spreads() -> None:
    flat = make_fleet("bandwidth(up=2e6, down=8e6)", 4, KEY)
    assert set(flat.up) == {2e6}
    assert set(flat.down) == {8e6}
    wide = make_fleet("bandwidth(up=2e6, spread=100)", 20_000, KEY)
    assert 95 < wide.up.max() / wide.up.min() <= 100
    assert np.median(wide.up) == pytest.approx(2e6, rel=0.05)
    np.testing.assert_allclose(wide.up / 2e6, wide.down / 1e7)


@pytest.mark.parametrize(("probability", "maximum"), [(0.3, 5), (0.3, 15), (0.7, 10)])
def test_delay_in_rounds(probability: float, maximum: int) -> None:
    fleet = make_fleet(f"delay(probability={probability}, maximum_rounds={maximum})", 30_000, KEY)
    late = fleet.fates(np.arange(30_000), 2).delay_rounds
    assert (late > 0).mean() == pytest.approx(probability, abs=0.015)
    counts = np.bincount(late[late > 0], minlength=maximum + 1)
    assert len(counts) == maximum + 1
    np.testing.assert_allclose(counts[1:] / counts.sum(), 1 / maximum, rtol=0.2)


def test_delay_in_seconds() -> None:
    fixed = make_fleet("delay(seconds=2)", 10, KEY).fates(np.arange(10), 1)
    assert set(fixed.delay) == {2.0}
    assert set(fixed.delay_rounds) == {0}
    drawn = make_fleet("delay(probability=0.5, seconds=1, maximum_seconds=3)", 10_000, KEY).fates(np.arange(10_000), 1)
    assert (drawn.delay > 0).mean() == pytest.approx(0.5, abs=0.03)
    assert 1.0 <= drawn.delay[drawn.delay > 0].min() < drawn.delay.max() < 3.0
    with pytest.raises(InputError, match="needs seconds or maximum_rounds"):
        make_fleet("delay(probability=0.5)", 3, KEY)


def test_loss() -> None:
    fleet = make_fleet("loss(probability=0.2)", 20_000, KEY)
    ids = np.arange(20_000)
    first, second = fleet.fates(ids, 1).lost, fleet.fates(ids, 2).lost
    assert first.mean() == pytest.approx(0.2, abs=0.015)
    assert (first & second).mean() == pytest.approx(0.04, abs=0.01)


def test_seconds_of_a_task_by_hand() -> None:
    fleet = make_fleet("ideal(flops=1e9, bandwidth=1e6)+bandwidth(up=5e5)", 3, KEY)
    timing = task_timing(fleet, [0, 2], flops=[2e9, 4e9], bytes_down=3e6, bytes_up=1e6, delay=[0.0, 10.0])
    assert timing.download.tolist() == [3.0, 3.0]
    assert timing.compute.tolist() == [2.0, 4.0]
    assert timing.upload.tolist() == [2.0, 2.0]
    assert timing.total.tolist() == [7.0, 19.0]
