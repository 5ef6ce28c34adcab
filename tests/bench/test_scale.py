"""What large federations cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from motley.bench import scale as module
from motley.bench.memory_use import held_bytes
from motley.bench.scale import TASKS, by_cohort, by_population, flatness, make_run, plot, seconds_of_rounds
from motley.core.errors import UnknownNameError


def test_rows_and_plot(tmp_path: Path) -> None:
    rows = [by_cohort(TASKS[0], cohort, 1, "cpu") for cohort in (10, 50)]
    rows.append(by_population(TASKS[0], 2000, 1, "cpu", cohort=5))
    assert [row["clients_per_round"] for row in rows] == [10, 50, 5]
    keys = {"case", "executor", "device", "ms_per_round", "client_steps_per_s", "ratio_to_bare_loop", "ratio_to_floor"}
    assert all(keys <= set(row) for row in rows)
    assert rows[0]["client_steps_per_s"] == pytest.approx(1e6 / rows[0]["us_per_client_step"], rel=1e-2)
    assert flatness(rows, "logistic") is None, "one row does not show it"
    assert plot(rows, tmp_path / "scale.png").stat().st_size > 5000


def test_cases_limit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "by_population", lambda task, population, *_: {"case": "population"})
    monkeypatch.setattr(module, "by_cohort", lambda task, cohort, *_: {"case": task.name})
    assert {row["case"] for row in module.scale(["cnn"], "cpu")} == {"cnn"}
    assert {row["case"] for row in module.scale(["logistic"], "cpu")} == {"population", "logistic"}
    assert {row["case"] for row in module.scale([], "cpu")} == {"population", "logistic", "cnn"}
    with pytest.raises(UnknownNameError, match="did you mean 'cnn'"):
        module.scale(["cnm"], "cpu")


def test_flatness_is_slowest_over_quickest_from_50_to_1000() -> None:
    rows = [
        {"case": "cnn", "clients_per_round": n, "us_per_client_step": us}
        for n, us in ((10, 90.0), (50, 10.0), (200, 12.0), (1000, 11.0), (3000, 30.0))
    ]
    assert flatness(rows, "cnn") == 1.2


def test_an_idle_client_takes_at_most_100_bytes() -> None:
    row = by_population(TASKS[0], 300_000, 1, "cpu", cohort=5)
    assert row["bytes_per_idle_client"] <= 100


def test_a_round_asks_everyone_once() -> None:
    run = make_run(TASKS[0], 300, 200, 2, "cpu")
    assert len(seconds_of_rounds(run)) == 2
    assert run.fed.ledger.chosen.sum() == 400
    assert run.fed.ledger.chosen.max() <= 2


def test_memory_that_is_shared_counts_once() -> None:
    block = np.zeros(1000)
    views = {"a": block, "b": block[10:], "c": torch.from_numpy(block)}
    assert 8000 <= held_bytes(views) < 9500
    other = torch.zeros(1000)
    assert held_bytes(lambda: other) >= 4000, "also what a function holds"
    assert held_bytes([other, other[5:], np.zeros(100)]) - held_bytes([other]) == pytest.approx(800, abs=100)
