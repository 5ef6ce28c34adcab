"""The search over recipe keys."""

from __future__ import annotations

import json
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from motley.core.errors import InputError, MemoryFullError, RecipeError, StateError
from motley.core.keys import Key
from motley.runtime import search as searching
from motley.runtime.launch import Result, launch, resume
from motley.runtime.recipe import Recipe
from motley.runtime.search import Axis, Search, Trial, grid, sample, tune

BASE: dict[str, Any] = {
    "clients": 10,
    "cohort": 4,
    "rounds": 2,
    "epochs": 1.0,
    "model": "mlp(hidden=[8])",
    "split": "by_clients(folds=5)",
    "executor": "loop",
}


def test_axes() -> None:
    assert Axis.parse("lr=0.1, 0.01").values == ("0.1", "0.01")
    spec = "method=radfed(S=2),fedprox(mu=0.1, partial=false)+importance(gamma=0.5)"
    assert Axis.parse(spec).values == ("radfed(S=2)", "fedprox(mu=0.1, partial=false)+importance(gamma=0.5)")
    assert Axis.parse("model=mlp(hidden=[8, 8]),logistic").values == ("mlp(hidden=[8, 8])", "logistic")
    ranged = Axis.parse("lr=0.001..0.1")
    assert (ranged.low, ranged.high) == (0.001, 0.1)
    assert ranged.draw(0.5) == pytest.approx(0.01)
    assert Axis.parse("x=0..4").draw(0.25) == 1.0
    for bad in ("lr", "=1", "lr=0.1,,0.2", "lr=a..b", "lr=2..1"):
        with pytest.raises(RecipeError):
            Axis.parse(bad)


def test_grid_and_sample() -> None:
    axes = [Axis("a", (1, 2)), Axis("b", (3, 4, 5))]  # type: ignore[arg-type]
    assert grid(axes)[:4] == [{"a": 1, "b": 3}, {"a": 1, "b": 4}, {"a": 1, "b": 5}, {"a": 2, "b": 3}]
    drawn = sample(axes, 4, Key.root(0))
    assert len(drawn) == 4
    assert all(one in grid(axes) for one in drawn)
    assert drawn == sample(axes, 4, Key.root(0))
    assert len(sample(axes, 40, Key.root(0))) == 6
    ranged = sample([Axis.parse("lr=0.001..0.1")], 5, Key.root(1))
    assert len({one["lr"] for one in ranged}) == 5
    assert all(0.001 <= one["lr"] <= 0.1 for one in ranged)
    with pytest.raises(RecipeError, match="needs a random search"):
        grid([Axis.parse("lr=0.001..0.1")])
    with pytest.raises(RecipeError, match="at least one draw"):
        sample(axes, 0, Key.root(0))


def test_a_search_chooses_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = {"lr": [1e-6, 0.1], "params.radfed.S": [1, 2]}
    arguments: dict[str, Any] = {**BASE, "method": "radfed", "folds": 2, "seeds": [0, 1]}
    told: list[int] = []
    search = tune("digits", axes, tmp_path, teller=lambda done, total, _: told.append(total), **arguments)
    assert told == [16] * 16
    assert search.chosen["lr"] == 0.1
    assert [len(trial.scores) for trial in search.trials] == [4] * 4
    table = (tmp_path / "table.md").read_text()
    assert table.count("\n") == 6
    assert "validation accuracy" in table
    chosen = tomllib.loads((tmp_path / "chosen.toml").read_text())
    assert "motley" in json.loads((tmp_path / "environment.json").read_text())
    assert chosen["lr"] == 0.1
    assert chosen["params"]["radfed"]["S"] == search.chosen["params.radfed.S"]
    records = (tmp_path / "runs" / "0003-fold1-seed1" / "rounds.jsonl").read_text().splitlines()
    best = max(json.loads(line)["extra"]["validation_accuracy"] for line in records)
    assert search.trials[3].scores[3] == best

    (tmp_path / "runs" / "0001-fold0-seed1" / "summary.json").unlink()
    resumed: list[Path] = []

    def watched(folder: Path) -> Result:
        resumed.append(folder)
        return resume(folder)

    monkeypatch.setattr(searching, "launch", lambda *_: pytest.fail("a finished run was run again"))
    monkeypatch.setattr(searching, "resume", watched)
    again = tune("digits", axes, tmp_path, **arguments)
    assert again == search
    assert resumed == [tmp_path / "runs" / "0001-fold0-seed1"]
    with pytest.raises(StateError, match="holds another search"):
        tune("digits", {"lr": [0.2]}, tmp_path, **arguments)


def test_runs_side_by_side_give_the_same_search(tmp_path: Path) -> None:
    axes = {"lr": [0.1, 1e30, 0.02]}
    told: list[int] = []
    one = tune("digits", axes, tmp_path / "one", folds=2, **BASE)
    two = tune("digits", axes, tmp_path / "two", folds=2, jobs=2, teller=lambda n, *_: told.append(n), **BASE)
    assert two == one
    assert told == list(range(6))
    assert [bool(trial.failed) for trial in two.trials] == [False, True, False]


def test_a_run_without_memory_beside_others_is_tried_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("motley.runtime.parallel_runs.ProcessPoolExecutor", lambda n, mp_context: ThreadPoolExecutor(n))
    tries: list[float] = []

    def crowded(recipe: Recipe, folder: Path) -> Result:
        tries.append(recipe.lr)
        if recipe.lr == 0.2 or tries.count(recipe.lr) == 1:
            raise MemoryFullError("The memory is full.")
        return launch(recipe, folder)

    monkeypatch.setattr(searching, "launch", crowded)
    made = tune("digits", {"lr": [0.1, 0.2]}, tmp_path, jobs=2, **BASE)
    assert sorted(tries) == [0.1, 0.1, 0.2, 0.2]
    assert made.chosen == {"lr": 0.1}
    assert made.ranked[-1].failed == "The memory is full."


def test_random_search_and_last_round(tmp_path: Path) -> None:
    search = tune("digits", [Axis.parse("lr=0.01..0.3")], tmp_path, random=2, metric="loss", at="last", **BASE)
    scores = [trial.mean for trial in search.ranked]
    assert scores == sorted(scores)
    assert search.chosen == search.ranked[0].settings


def test_a_trial_that_fails_comes_last(tmp_path: Path) -> None:
    search = tune("digits", {"lr": [1e30, 0.05]}, tmp_path, **BASE)
    assert search.chosen == {"lr": 0.05}
    assert "not finite" in search.ranked[-1].failed
    assert "failed: " in search.markdown()


def test_a_setting_whose_trouble_shows_when_it_runs_comes_last(tmp_path: Path) -> None:
    """More models than clients: only the protocol sees that."""
    search = tune("digits", {"cohort": [50, 3]}, tmp_path, **{**BASE, "method": "radfed(S=2)"})
    assert search.chosen == {"cohort": 3}
    assert "models cannot walk" in search.ranked[-1].failed


def test_a_wrong_setting_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="S=0; it must be a whole number of at least 1"):
        tune("digits", {"method": ["fedavg", "radfed(S=0)"]}, tmp_path / "search", **BASE)
    assert not (tmp_path / "search").exists()


def test_ties_and_order() -> None:
    trials = (Trial({"a": 1}, (2.0,)), Trial({"a": 2}, (1.0,)), Trial({"a": 3}, (1.0,)))
    for better, order in ((-1, [2, 3, 1]), (1, [1, 2, 3])):
        assert [trial.settings["a"] for trial in Search("loss", trials, better).ranked] == order


def test_bad_searches_get_a_sentence(tmp_path: Path) -> None:
    def refuse(match: str, **changes: Any) -> None:
        given = {"axes": {"lr": [0.1]}, **BASE, **changes}
        with pytest.raises(InputError, match=match):
            tune("digits", folder=tmp_path / "none", **given)

    refuse("nothing to tune", axes={})
    refuse("'seed' cannot be tuned", axes={"seed": [1, 2]})
    refuse("given twice", axes=[Axis("lr", ("1",)), Axis("lr", ("2",))])
    refuse("must be one of loss, accuracy, macro_f1", metric="f1")
    refuse("'best' or 'last'", at="first")
    refuse("has no split", split=None)
    refuse("at least one fold", folds=0)
    refuse(r"this split has 5 of them", folds=6)
    refuse("no recipe key named 'larning'", axes={"larning": [1]})
    refuse("no validation auc", metric="auc")
