"""What is missing is run: once, within a budget, one failure apart from the others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from motley.core.errors import InputError, MemoryFullError
from motley.reproduce import campaign as engine
from motley.reproduce import reproduction as spec
from motley.reproduce.campaign import Plan, WantedRun, carry_out, matching, run_all, wanted_runs
from motley.reproduce.comparison import build
from motley.reproduce.results import Finished, Results
from motley.runtime.recipe import load
from motley.runtime.records import Record


def test_runs_are_made_once_and_shown_again(tiny: str, tmp_path: Path) -> None:
    made, results = spec.read(tiny), Results(tmp_path / "results")
    plan = Plan(cache=tmp_path / "cache")
    todo = wanted_runs([made], results, plan)
    assert [wanted_run.recipe.seed for wanted_run in todo] == [0] * 4 + [1] * 4
    assert build(made, results).status == "none"
    for run in run_all(todo, plan, lambda *_: None):
        results.add(run)
    assert wanted_runs([made], results, plan) == []
    again = Results(tmp_path / "results")
    table = build(made, again)
    assert table.status == "full"
    first = table.rows[0]
    assert (first.row, first.metric, first.paper, first.seeds) == ("A, one", "accuracy", 50.0, 2)
    assert first.low is not None
    assert first.measured is not None
    assert first.difference == pytest.approx(first.measured - 50.0, abs=1e-3)
    assert [claim.text for claim in table.claims] == ["B beats A", "More is better"]
    assert build(made, again, seeds=[0, 7]).status == "partial"
    assert wanted_runs([made], again, plan, quick=True) != []


def test_no_run_starts_after_the_budget(tiny: str, tmp_path: Path) -> None:
    made, results = spec.read(tiny), Results(tmp_path / "results")
    plan = Plan(budget=1e-9, cache=tmp_path / "cache")
    assert list(run_all(wanted_runs([made], results, plan), plan, lambda *_: None)) == []


def test_a_paused_run_goes_on_to_the_same_result(tiny: str, tmp_path: Path) -> None:
    recipe = load(spec.read(tiny).recipe_of(spec.Cell("B", "one"), spec.Draw(0)), {"checkpoint_seconds": 0})
    whole = carry_out(WantedRun("tiny", "B, one", False, recipe, tmp_path / "whole"))
    told: list[str] = []
    plan = Plan(budget=60.0, grace=-60.0)
    paused = WantedRun("tiny", "B, one", False, recipe, tmp_path / "paused")
    assert list(run_all([paused], plan, lambda *seen: told.append(seen[2]))) == []
    assert "paused" in told[0]
    assert (tmp_path / "paused" / "rounds.jsonl").read_text().count("\n") == 1
    assert carry_out(paused).accuracy == whole.accuracy


def test_a_run_that_diverges_is_recorded_as_guessing(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load(
        spec.read(tiny).recipe_of(spec.Cell("A", "one"), spec.Draw(0)),
        {"method": "fedavgm(lr=1e12)", "model": "mlp", "rounds": 9},
    )
    wanted_run = WantedRun("tiny", "A, one", False, recipe, tmp_path / "run")
    run = carry_out(wanted_run)
    assert run.summary["accuracy"] == pytest.approx(0.1)
    assert run.summary["diverged"] > 1
    assert len(run.accuracy) == 9
    assert "validated" not in run.summary
    monkeypatch.setattr(engine, "pick", lambda _: "meta")
    assert engine.diverged(wanted_run).params.is_meta, "it says where it was made"


def test_a_run_that_diverges_keeps_the_round_that_validation_chose(tiny: str, tmp_path: Path) -> None:
    recipe = load(
        spec.read(tiny).recipe_of(spec.Cell("A", "one"), spec.Draw(0)),
        {"split": "by_clients(folds=5)", "evaluate_every": 4, "rounds": 10},
    )
    wanted_run = WantedRun("tiny", "A, one", False, recipe, tmp_path / "run")
    bare = Record(1, 0.0, 0.0, 1, 1, 0, 0, 0, 0)
    seen = [
        replace(bare, round=4, scores={"accuracy": 0.7}, extra={"validation_accuracy": 0.8, "validation_loss": 0.5}),
        replace(bare, round=6),
    ]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rounds.jsonl").write_text("".join(record.to_line() + "\n" for record in seen))
    result = engine.diverged(wanted_run)
    assert result.summary["validated"]["accuracy"] == {"round": 4, "validation": 0.8, "test": 0.7}
    assert [record.round for record in result.records if record.accuracy is not None] == [4, 8, 10]
    assert result.summary["diverged"] == 7


def test_one_failure_leaves_the_others_be(tiny: str, tmp_path: Path) -> None:
    made = spec.read(tiny)
    good = made.recipe_of(spec.Cell("A", "one"), spec.Draw(0))
    bad = load(good, {"method": "no_such_method"})
    told: list[str] = []
    work = [WantedRun("tiny", "x", False, r, tmp_path / str(i)) for i, r in enumerate((bad, good))]
    done = list(run_all(work, Plan(), lambda *seen: told.append(seen[2])))
    assert len(done) == 1
    assert "no_such_method" in told[0]


def test_a_run_without_memory_beside_others_is_tried_again(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first never fits, the second only alone, the third always."""
    recipe = spec.read(tiny).recipe_of(spec.Cell("A", "one"), spec.Draw(0))
    work = [WantedRun("tiny", name, False, recipe, tmp_path / name) for name in ("never", "alone", "beside")]
    done, calls = carry_out(replace(work[2], folder=tmp_path / "made")), []

    def tried(wanted_run: WantedRun) -> Finished:
        calls.append(wanted_run.cell)
        if wanted_run.cell == "never" or (wanted_run.cell == "alone" and calls.count("alone") == 1):
            raise MemoryFullError("full") if wanted_run.cell == "never" else torch.OutOfMemoryError("full")
        return replace(done, cell=wanted_run.cell)

    monkeypatch.setattr(engine, "carry_out", tried)
    monkeypatch.setattr("motley.runtime.parallel_runs.ProcessPoolExecutor", lambda n, mp_context: ThreadPoolExecutor(n))
    told: list[tuple[str, str]] = []
    made = list(run_all(work, Plan(jobs=2), lambda wanted_run, _, trouble: told.append((wanted_run.cell, trouble))))
    assert [run.cell for run in made] == ["beside", "alone"]
    assert calls.count("never") == 2
    assert ("never", "full") in told, "the second time it is a failure"
    assert sum("tried again" in trouble for _, trouble in told) == 2


def test_only_some_places_are_run(tiny: str, tmp_path: Path) -> None:
    wanted = wanted_runs([spec.read(tiny)], Results(tmp_path), Plan())
    assert [wanted_run.cell for wanted_run in matching(wanted, ["B, "])] == ["B, one", "B, two"] * 2
    assert matching(wanted, []) == wanted
    assert matching([], ["B, "]) == []
    with pytest.raises(InputError, match="'C or D'; those missing are: A, one; A, two; B, one; B, two"):
        matching(wanted, ["C", "D"])
