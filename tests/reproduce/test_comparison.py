"""Metrics, intervals, comparisons and claims, by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from motley.reproduce import reproduction as spec
from motley.reproduce.claims import compare, interval
from motley.reproduce.comparison import Table, against
from motley.reproduce.metrics import bounds, measure
from motley.reproduce.pages import markdown
from motley.reproduce.table_picture import points
from tests.reproduce.finished_runs import finished


def test_metrics_by_hand() -> None:
    run = finished(0.9)
    assert measure("accuracy", run) == pytest.approx(90)
    assert measure("mean_accuracy(last=2)", run) == pytest.approx(70)
    assert measure("stability(last=2)", run) == pytest.approx(800)
    assert measure("rounds_to(target=0.4)", run) == 2
    assert measure("rounds_to(target=0.99)", run) is None
    assert measure("rounds_to(target=0.99, capped=true)", run) == 3  # at least as many


def test_times_by_hand() -> None:
    timed = finished(0.9, times=[1.0, 2.5, 4.0])
    assert measure("time_to(target=0.4)", timed) == 2.5
    assert measure("time_to(target=0.99)", timed) is None
    assert measure("time_to(target=0.99, capped=true)", timed) == 4.0


def test_recorded_numbers_by_hand() -> None:
    run = finished(0.9, extra={"diversity": [1.0, 2.0, 6.0]})
    assert measure("recorded(name='diversity')", run) == 3.0
    assert measure("recorded(name='diversity', last=2)", run) == 4.0
    assert measure("recorded(name='other')", run) is None
    stopped = finished(0.9, extra={"dc": [1.0, 3.0, None]})
    assert measure("recorded(name='dc')", stopped) is None
    assert measure("recorded(name='dc', last=1)", stopped) is None
    assert measure("wobble(name='dc')", stopped) is None
    assert [math.isnan(value) for value in points(stopped, "dc")[1]] == [False, False, True]


def test_numbers_of_the_summary_by_hand() -> None:
    run = finished(0.9)
    assert measure("summary(name='accuracy')", run) == 0.9
    assert measure("advantage", run) is None
    fair = finished(0.9)
    fair.summary["fairness"] = {"chosen_by_speed": [1.0, *[2.0] * 8, 3.0]}
    assert measure("advantage", fair) == pytest.approx(1.5 - 0.5)


def test_interval_by_hand() -> None:
    """t(0.975, 2) = 4.3027: mean 2, standard deviation 1, three values."""
    low, high = interval([1.0, 2.0, 3.0])
    assert (low, high) == (pytest.approx(2 - 4.3027 / 3**0.5, abs=1e-3), pytest.approx(2 + 4.3027 / 3**0.5, abs=1e-3))
    assert interval([1.0]) == (None, None)
    assert interval([1.0, 99.0], bounds("accuracy")) == (0.0, 100.0)
    assert interval([0.1, 5.0], bounds("stability(last=5)"))[0] == 0.0
    assert bounds("recorded(name='diversity')") == (-math.inf, math.inf)


def test_comparison_is_by_seed_and_honest() -> None:
    high = [finished(0.50 + 0.1 * seed, seed) for seed in range(3)]
    low = [finished(0.48 + 0.1 * seed + 0.001 * seed, seed) for seed in range(3)]
    assert compare("accuracy", high, low)[0] is True
    assert compare("accuracy", low, high)[0] is False
    assert compare("accuracy", high, list(reversed(high)))[0] is None
    assert compare("accuracy", high[:1], low)[0] is None
    assert compare("accuracy", [], low)[:2] == (None, None)


def test_a_margin_allows_a_small_loss() -> None:
    high = [finished(0.50 + 0.1 * seed, seed) for seed in range(3)]
    low = [finished(0.48 + 0.1 * seed + 0.001 * seed, seed) for seed in range(3)]  # 1.8 to 2 points below
    assert compare("accuracy", low, high, margin=3.0)[0] is True
    assert compare("accuracy", low, high, margin=1.0)[0] is False
    assert compare("accuracy", low, high, margin=1.9)[0] is None


def test_rows_beside_a_baseline(tmp_path: Path) -> None:
    """Relative differences by hand, and the p-values of the signed-rank test; the mean over the paper's columns."""
    made = spec.read("radfed-table-3").model_copy(
        update={
            "rows": {"A": {}, "B": {}},
            "columns": {"x": {}, "y": {}, "z": {}},
            "baseline": "A",
            "metrics": ["accuracy"],
            "numbers": {"accuracy": {"A": [1.0, 2.0, math.nan]}},
        }
    )
    scores = {("A", "x"): [0.4, 0.5, 0.6], ("B", "x"): [0.5, 0.6, 0.4], ("A", "y"): [0.5], ("B", "y"): [0.6],
              ("A", "z"): [0.5], ("B", "z"): [0.9]}  # fmt: skip
    runs = {spec.Cell(*place): [finished(v, seed) for seed, v in enumerate(found)] for place, found in scores.items()}
    found = {(one.row, one.column): one for one in against(made, runs)}
    assert set(found) == {("B", "x"), ("B", "y"), ("B", "z"), ("B", None)}
    assert found["B", "x"].relative == pytest.approx(0.0, abs=1e-9)
    assert found["B", "x"].p == 1.0
    assert found["B", "y"].relative == pytest.approx(20.0)
    assert found["B", None].relative == pytest.approx(100 * (1.1 - 1.0) / 1.0), "z is not in the paper"
    assert found["B", None].pairs == 4
    page = markdown(Table(made, False, runs, [], [], 0, list(found.values())))
    assert "| | x | y | z | mean |" in page
    assert "| B | +0.00 (1.00) | +20.00 (1.00) | +80.00 (1.00) | +10.00" in page
    assert against(made.model_copy(update={"baseline": None}), runs) == []
