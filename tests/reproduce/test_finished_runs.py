"""Finished runs: kept once, by several processes at a time, none lost, found again."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import pytest

from motley.core.errors import StateError
from motley.reproduce.results import Results, exported, imported, read_runs
from motley.runtime.recipe import load
from tests.reproduce.finished_runs import finished


def test_export_and_import(tmp_path: Path) -> None:
    runs = [finished(0.5), finished(0.6, 1)]
    exported(tmp_path / "out", runs)
    with (tmp_path / "out" / "runs.jsonl").open("a") as file:
        file.write('{"cut off')
    assert list(imported(tmp_path / "out")) == runs
    results = Results(tmp_path / "results")
    assert results.take_in(tmp_path / "out") == 2
    assert results.take_in(tmp_path / "out") == 0
    assert list(read_runs(tmp_path / "results" / "papers" / "tiny" / "runs.jsonl")) == runs


def test_a_run_without_a_needed_diagnostic_does_not_count(tmp_path: Path) -> None:
    recipe = load("digits", {"diagnostics": ["diversity"]})
    results = Results(tmp_path)
    results.add(finished(0.5, identity=recipe.identity))
    assert results.find(recipe) is None
    results.add(finished(0.5, identity=recipe.identity, recipe={"diagnostics": ["diversity", "per_class"]}))
    assert results.find(recipe) is not None


def test_runs_of_an_earlier_version_are_added(tmp_path: Path) -> None:
    """They lay in a file each; a folder that still has such files is not taken for an empty one."""
    run = finished(0.5)
    old = tmp_path / "old" / "tiny" / "runs" / "x-s0.json"
    old.parent.mkdir(parents=True)
    old.write_text(json.dumps(asdict(run), indent=1))
    with pytest.raises(StateError, match="--import"):
        Results(tmp_path / "old")
    results = Results(tmp_path / "new")
    assert results.take_in(tmp_path / "old") == 1
    assert list(read_runs(tmp_path / "new" / "papers" / "tiny" / "runs.jsonl")) == [run]
    with pytest.raises(StateError, match="no exported runs"):
        results.take_in(tmp_path / "nowhere")


def test_half_a_line_costs_only_itself(tmp_path: Path) -> None:
    """Whoever was killed while writing; and an editor that left out the last line's end."""
    path = tmp_path / "papers" / "tiny" / "runs.jsonl"
    one, two, three = (finished(0.5 + 0.1 * seed, seed) for seed in range(3))
    Results(tmp_path).add(one)
    with path.open("a") as file:
        file.write(two.to_line()[:100])
    assert list(read_runs(path)) == [one]
    Results(tmp_path).add(two)
    path.write_text(path.read_text().rstrip("\n"))
    Results(tmp_path).add(three)
    assert list(read_runs(path)) == [one, two, three]
    path.write_text("not a run\n" + path.read_text())
    with pytest.raises(StateError, match="Line 1 of"):
        Results(tmp_path)


def _add(folder: Path, first: int) -> None:
    results = Results(folder)
    for seed in range(first, first + 20):
        results.add(finished(0.5, seed, extra={"long": [float(seed)] * 2000}))


def test_processes_side_by_side_lose_nothing(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        list(pool.map(_add, [tmp_path] * 4, [0, 20, 40, 60]))
    runs = list(read_runs(tmp_path / "papers" / "tiny" / "runs.jsonl"))
    assert sorted(run.seed for run in runs) == list(range(80))
    assert all(run.extra["long"] == [float(run.seed)] * 2000 for run in runs)
