"""The event log, who trained when, and what a score costs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import motley as package
from motley.core.errors import StateError
from motley.report.run_data import group, read_run
from motley.report.targets import frontier_rows, plot_frontier, target_rows, target_table
from motley.report.timeline import Trip, plot_timeline, shown_clients, trips
from motley.runtime.records import Record
from motley.runtime.task_log import NAME, read_events
from tests.cli.conftest import Motley
from tests.cli.conftest import motley as motley  # noqa: PLC0414  (a fixture)

BASE: dict[str, Any] = {
    "data": "digits", "clients": 8, "cohort": 4, "rounds": 6, "model": "mlp(hidden=[8])", "executor": "loop",
    "fleet": "uniform_spread(ratio=5)+loss(probability=0.2)", "checkpoint_seconds": 0.0, "events": True,
}  # fmt: skip


run, again = package.run, package.resume


@pytest.mark.parametrize("method", ["fedavg", "fedasync", "safa"])
def test_every_task_is_told_of(method: str, tmp_path: Path) -> None:
    result = run({**BASE, "method": method}, tmp_path / "run")
    events = read_events(tmp_path / "run")
    what = Counter(event["what"] for event in events)
    assert what["dispatch"] == sum(record.participants for record in result.records)
    assert what["lose"] == result.summary["lost"] > 0
    assert sum(event.get("bytes_up", 0) for event in events) == result.summary["bytes_up"]
    assert sum(event.get("bytes_down", 0) for event in events) == result.summary["bytes_down"]
    times = [event["time"] for event in events]
    assert times == sorted(times)
    came = [event for event in events if event["what"] == "arrive"]
    begun = {event["task"]: event["time"] for event in events if event["what"] == "dispatch"}
    assert all(event["seconds"] == pytest.approx(event["time"] - begun[event["task"]]) for event in came)
    assert all({"loss", "epochs", "steps", "client", "round"} <= set(event) for event in came)


@pytest.mark.parametrize("method", ["fedavg", "fedasync"])
def test_a_resumed_run_tells_nothing_twice(method: str, tmp_path: Path) -> None:
    asked = {**BASE, "method": method}

    def interrupt(record: Record) -> None:
        if record.round == 3:
            raise KeyboardInterrupt

    whole = run(asked, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run({**asked, "checkpoint_seconds": 1e6}, tmp_path / "late", listeners=[interrupt])
    with pytest.raises(KeyboardInterrupt):
        run(asked, tmp_path / "run", listeners=[interrupt])
    with (tmp_path / "run" / NAME).open("a") as log:
        log.write('{"time": 1')  # cut off
    expected = (tmp_path / "whole" / NAME).read_text()
    for name in ("run", "late"):
        assert again(tmp_path / name).summary["model_sha256"] == whole.summary["model_sha256"]
        assert (tmp_path / name / NAME).read_text() == expected
    again(tmp_path / "whole")
    assert (tmp_path / "whole" / NAME).read_text() == expected


def test_without_being_asked_nothing_is_told(tmp_path: Path) -> None:
    plain = run({**BASE, "events": False}, tmp_path / "run")
    assert not (tmp_path / "run" / NAME).exists()
    assert plain.summary["model_sha256"] == run(BASE, tmp_path / "told").summary["model_sha256"]


def test_groups_on_one_clock_are_told_of_together(tmp_path: Path) -> None:
    result = run({**BASE, "method": "fedat(tiers=2)"}, tmp_path / "run")
    told = Counter(event["what"] for event in read_events(tmp_path / "run"))
    assert told["dispatch"] >= sum(record.participants for record in result.records) > 0


# ------------------------------------------------------------------------------------------ the picture


def event(time: float, what: str, task: str, client: int = 0) -> dict[str, Any]:
    return {"time": time, "what": what, "client": client, "round": 1, "task": task}


def test_what_comes_of_a_task() -> None:
    events = [
        event(0.0, "dispatch", "a", 1), event(0.0, "dispatch", "b", 2), event(0.0, "dispatch", "c", 3),
        event(0.0, "dispatch", "d", 4), event(0.0, "dispatch", "e", 5), event(1.0, "arrive", "a", 1),
        event(2.0, "lose", "b", 2), event(2.5, "arrive", "e", 5),
        {"time": 3.0, "what": "aggregate", "client": -1, "round": 1, "updates": 1, "tasks": ["a"]},
        event(3.0, "give up", "c", 3), event(4.0, "discard", "e", 5),
    ]  # fmt: skip
    found, merged = trips(events)
    assert merged == [3.0]
    assert found == [
        Trip(1, 0.0, 1.0, "merged"), Trip(2, 0.0, 2.0, "lost"), Trip(3, 0.0, 3.0, "late"), Trip(4, 0.0, None, "out"),
        Trip(5, 0.0, 2.5, "late"),
    ]  # fmt: skip


def test_many_clients_are_those_with_the_most_tasks() -> None:
    every = [Trip(client, 0.0) for client in (5, 1, 5, 7, 7, 7, 2)]
    assert shown_clients(every, 3) == [1, 5, 7]


def test_a_picture(tmp_path: Path) -> None:
    run({**BASE, "deadline": 0.02}, tmp_path / "run")
    image = plot_timeline(tmp_path / "run", tmp_path / "timeline.png")
    assert image.read_bytes().startswith(b"\x89PNG")
    run({**BASE, "events": False}, tmp_path / "silent")
    with pytest.raises(StateError, match="run it with events=true"):
        plot_timeline(tmp_path / "silent", tmp_path / "none.png")


# ------------------------------------------------------------------------------------------ targets and the frontier


def made(folder: Path, seed: int, scores: list[float], name: str = "accuracy", method: str = "fedavg") -> Path:
    """A run as its directory tells it, with these scores after 1, 2, ... seconds and 10 + 5 bytes each round."""
    recipe = motley_recipe({"method": method, "seed": seed, "rounds": len(scores)})
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(recipe)
    rows = [Record(n, float(n), 0.0, 1, 1, 0, 0, 10, 5, scores={name: s}) for n, s in enumerate(scores, 1)]
    (folder / "rounds.jsonl").write_text("".join(row.to_line() + "\n" for row in rows))
    return folder


def motley_recipe(content: dict[str, Any]) -> str:
    from motley.runtime.recipe import load

    return load(content).to_toml()


def test_what_a_target_costs(tmp_path: Path) -> None:
    folders = made(tmp_path / "a", 0, [0.5, 0.9, 0.8]), made(tmp_path / "c", 0, [0.1], method="scaffold")
    groups = group([read_run(folder) for folder in folders])
    rows = target_rows(groups, 0.85)
    assert {key: value for key, value in rows[0].items() if key != "label"} == {
        "reached": 1, "seeds": 1, "rounds": 2, "virtual_time": 2, "bytes": 30,
    }  # fmt: skip
    assert rows[1]["rounds"] is None
    assert "not reached" in target_table(groups, 0.85)
    assert "| 2 | 2.0 s | 0.0 MB | 1 of 1 |" in target_table(groups, 0.85)


def test_seeds_are_averaged_over_those_that_reached_it(tmp_path: Path) -> None:
    runs = [
        made(tmp_path / str(seed), seed, scores) for seed, scores in enumerate([[0.5, 0.9], [0.9, 0.9], [0.1, 0.2]])
    ]
    (row,) = target_rows(group([read_run(folder) for folder in runs]), 0.85)
    assert (row["reached"], row["seeds"], row["rounds"], row["bytes"]) == (2, 3, 1.5, 22.5)


def test_where_less_is_better_a_target_is_reached_from_above(tmp_path: Path) -> None:
    folder = made(tmp_path / "a", 0, [0.9, 0.4, 0.2], name="loss")
    assert target_rows(group([read_run(folder)]), 0.4)[0]["rounds"] == 2


def test_the_frontier_is_what_nobody_beats(tmp_path: Path) -> None:
    quick = made(tmp_path / "quick", 0, [0.5], method="fedavg")
    good = made(tmp_path / "good", 0, [0.5, 0.6, 0.9], method="scaffold")
    worse = made(tmp_path / "worse", 0, [0.5, 0.6, 0.4, 0.4], method="fedprox")
    groups = group([read_run(folder) for folder in (quick, good, worse)])
    assert [row["best_for_bytes"] for row in frontier_rows(groups)] == [True, True, False]
    assert [row["best_for_virtual_time"] for row in frontier_rows(groups)] == [True, True, False]
    assert plot_frontier(groups, tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")


def test_from_the_command_line(motley: Motley) -> None:
    asked = ("run", "digits", "rounds=3", "events=true", "--json")
    runs = [motley(*asked, f"method={name}").last["run"] for name in ("fedavg", "scaffold")]
    end = motley("report", *runs, "--timeline", "--target", "0.15", "--frontier", "--json")
    assert end.code == 0, end.err
    assert all(Path(one).is_file() for one in [*end.last["timelines"], end.last["frontier"]["plot"]])
    assert [row["seeds"] for row in end.last["target"]] == [1, 1]
    told = motley("report", runs[0], "--target", "0.15", "--timeline")
    assert "| to accuracy 15.0 % | rounds |" in told.out
    assert (Path(runs[0]) / "timeline.png").is_file()
    assert json.loads((Path(runs[0]) / "summary.json").read_text())["rounds"] == 3
