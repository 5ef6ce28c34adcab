"""The rehearsal: rates and times that can be computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from motley.core.errors import InputError
from motley.core.keys import Key
from motley.fleet import make_fleet
from motley.report.forecast import Forecast, Work, forecast, normalised_entropy
from motley.runtime.launch import run

KEY = Key.root(3)


def look(
    spec: str, n: int = 50, *, cohort: int = 10, rounds: int = 200, deadline: float | None = None, epochs: float = 2.0
) -> Forecast:
    work = Work(np.full(n, 100), epochs, 1e7, 1_000_000, deadline)
    return forecast(make_fleet(spec, n, KEY), work, cohort=cohort, rounds=rounds, key=KEY)


def test_ideal_fleet_by_hand() -> None:
    """100 samples, 2 epochs of 1e7 FLOPs at 1e10 FLOP/s, and 1 MB each way at 1e7 bytes/s."""
    found = look("ideal")
    np.testing.assert_allclose(found.round_times, 0.1 + 0.2 + 0.1)
    assert found.straggler_rate == found.dropout_rate == 0.0
    assert found.participation_entropy == pytest.approx(1.0)
    assert found.stages == pytest.approx({"download": 0.25, "compute": 0.5, "upload": 0.25, "delay": 0.0})
    assert [o.name for o in found.outlooks] == ["wait for all"]
    assert found.outlooks[0].in_time == 1.0


@pytest.mark.parametrize("n", [100, 200, 772, 1000])
def test_fedsae_fleet_leaves_about_97_percent_stragglers(n: int) -> None:
    """FedAvg with 15 epochs; the paper has 96.5 to 97.5 % on four data sets of these numbers of clients."""
    noise = 0.05 / np.sqrt(n)  # clients' own rates differ by about 0.05
    assert look("fedsae", n, epochs=15.0).straggler_rate == pytest.approx(0.967, abs=0.002 + 3 * noise)


def test_straggler_causes() -> None:
    found = look("limited(fraction=0.2)+delay(probability=0.3, maximum_rounds=5)", 2000, rounds=20)
    assert found.straggler_causes["limited"] == pytest.approx(0.2)
    assert found.straggler_causes["late"] == pytest.approx(0.3, abs=0.01)
    assert found.straggler_rate == pytest.approx(1 - 0.8 * 0.7, abs=0.01)


def test_dropouts_are_absences_and_losses() -> None:
    found = look("bernoulli(p=0.5)+loss(probability=0.2)", 2000, rounds=30)
    assert found.absence_rate == pytest.approx(0.5, abs=0.01)
    assert found.loss_rate == pytest.approx(0.2, abs=0.01)
    assert found.dropout_rate == pytest.approx(1 - 0.5 * 0.8, abs=0.01)


def test_deadlines_cut_rounds_and_leave_the_slow_behind() -> None:
    spec = "speed_classes(shares=[0.5, 0.5], speeds=[1, 0.1])"  # 0.4 s and 2.2 s a task
    free, strict = look(spec), look(spec, deadline=1.0)
    assert free.round_times.max() == pytest.approx(2.2)
    assert free.straggler_rate == 0.0
    assert strict.round_times.max() == pytest.approx(1.0)
    assert strict.straggler_causes["deadline"] == strict.straggler_rate == pytest.approx(0.5)
    recipe = strict.outlooks[-1]
    assert recipe.name == "recipe"
    assert recipe.in_time == pytest.approx(0.5, abs=0.05)
    assert strict.participation_entropy == pytest.approx(np.log(25) / np.log(50), abs=0.01)
    times = [outlook.round_time for outlook in free.outlooks]
    assert times == sorted(times, reverse=True)


def test_seconds_of_delay_count() -> None:
    found = look("delay(seconds=3)")
    np.testing.assert_allclose(found.round_times, 3.4)
    assert found.stages["delay"] == pytest.approx(3 / 3.4)


def test_work_that_is_cut_short_takes_less_and_sends_nothing() -> None:
    found = look("affordable(low=1, high=1)", epochs=50.0)
    assert found.straggler_rate == 1.0
    assert found.stages["upload"] == 0.0
    assert found.round_times.max() < 0.1 + 0.1 * 4
    assert found.participation_entropy == 0.0


def test_cohorts_are_drawn_from_those_there() -> None:
    fleet = make_fleet("bernoulli(p=0.1)", 30, KEY)
    work = Work(np.full(30, 10), 1.0, 1e6, 1000, None)
    found = forecast(fleet, work, cohort=10, rounds=40, key=KEY)
    for round_index, ids in enumerate(found.cohorts, start=1):
        assert fleet.present(round_index, 0.0)[ids].all()
        assert len(set(ids.tolist())) == len(ids) <= 10


def test_nobody_there(tmp_path: Path) -> None:
    file = tmp_path / "never.json"
    file.write_text(json.dumps([{"active": [], "inactive": [], "finish_time": 10}]))
    with pytest.raises(InputError, match="In none of the 5 rounds"):
        look(f"availability_trace(path={str(file)!r})", rounds=5)


def test_an_hour_without_anybody_passes(tmp_path: Path) -> None:
    file = tmp_path / "later.json"
    file.write_text(json.dumps([{"active": [3600], "inactive": [7200], "finish_time": 7200}]))
    found = look(f"availability_trace(path={str(file)!r})", rounds=100)
    assert len(found.cohorts) == 40  # 60 rounds of a minute each find nobody


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(InputError, match="cohort is 0"):
        look("ideal", cohort=0)
    with pytest.raises(InputError, match="deadline is -1"):
        look("ideal", deadline=-1.0)
    with pytest.raises(InputError, match="7 clients but the fleet 5"):
        forecast(make_fleet("ideal", 5, KEY), Work(np.ones(7), 1, 1, 1, None), cohort=1, rounds=1, key=KEY)  # type: ignore[arg-type]


def test_waits_as_long_as_a_simulated_run(tmp_path: Path) -> None:
    file = tmp_path / "soon.json"
    file.write_text(json.dumps([{"active": [300], "inactive": [7200], "finish_time": 7200}]))
    spec = f"availability_trace(path={str(file)!r})"
    with pytest.warns(UserWarning, match="No update has reached the server for 5 rounds"):
        records = run("digits", fleet=spec, rounds=7).records
    waited = [record.virtual_time for record in records if not record.participants]
    assert waited == [60.0, 120.0, 180.0, 240.0, 300.0]
    assert len(look(spec, rounds=100).cohorts) == 100 - len(waited)


def test_entropy_of_known_shares() -> None:
    assert normalised_entropy(np.full(8, 1000)) == pytest.approx(1.0)
    assert normalised_entropy(np.array([1000, 1000, 0, 0])) == pytest.approx(0.5)
    assert normalised_entropy(np.array([1000, 0, 0, 0])) == pytest.approx(0.0)
    assert normalised_entropy(np.zeros(4, np.int64)) == 0.0
    assert normalised_entropy(np.array([5])) == 1.0


def test_entropy_does_not_fall_for_want_of_looks() -> None:
    """Everybody alike, but seen once in ten: the counts' own entropy would say 0.83."""
    counts = KEY.generator().binomial(1, 0.1, 100_000)
    seen = counts[counts > 0] / counts.sum()
    assert -(seen * np.log(seen)).sum() / np.log(100_000) < 0.81
    assert normalised_entropy(counts) > 0.97
