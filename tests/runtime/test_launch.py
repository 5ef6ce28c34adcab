"""One way to begin, resume and finish a run: when it ends, what it starts from, who listens, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import motley
from motley.core.errors import InputError, StateError
from motley.engine.executor import EXECUTORS
from motley.engine.loop import Loop
from motley.runtime.experiment import prepare
from motley.runtime.launch import Run, launch
from motley.runtime.listeners import Listener
from motley.runtime.recipe import load
from motley.runtime.records import Record, read_records
from motley.runtime.result import Result
from tests.runtime.killable import facts

BASE: dict[str, Any] = {
    "data": "digits",
    "clients": 8,
    "cohort": 3,
    "rounds": 5,
    "model": "mlp(hidden=[8])",
    "fleet": "uniform_spread(ratio=4)",
    "executor": "loop",
    "checkpoint_seconds": 0.0,
}


# ------------------------------------------------------------------------------------------ until


@pytest.mark.parametrize("method", ["fedavg", "fedasync", "fedbuff(buffer=2)", "ama_async", "safa", "fedat(tiers=2)"])
def test_until_ends_a_run_with_the_rounds_that_were_complete_by_then(method: str) -> None:
    whole = motley.run({**BASE, "method": method, "rounds": 12})
    end = (whole.records[6].virtual_time + whole.records[7].virtual_time) / 2
    times = [record.virtual_time for record in whole.records if record.virtual_time < end]
    cut = motley.run({**BASE, "method": method, "rounds": 1000, "until": end})
    assert [record.virtual_time for record in cut.records] == times
    assert cut.summary["ended"] == "until"
    same = motley.run({**BASE, "method": method, "rounds": len(times)})
    assert cut.summary["model_sha256"] == same.summary["model_sha256"]
    assert cut.scores == same.scores
    assert same.summary["ended"] == "rounds"


def test_a_run_that_ends_by_time_is_judged_where_it_ends(tmp_path: Path) -> None:
    end = motley.run({**BASE, "rounds": 5}).records[4].virtual_time * 1.0001
    noted = Noted()
    result = launch(load({**BASE, "rounds": 99, "until": end, "evaluate_every": 3}), tmp_path / "run", [noted])
    assert [record.judged for record in result.records] == [False, False, True, False, True]
    assert [record.judged for record in read_records(tmp_path / "run" / "rounds.jsonl")][-1]
    assert noted.told.count("evaluated 5") == 1


def test_until_before_the_end_of_the_first_round_is_told() -> None:
    with pytest.raises(StateError, match="before its first round did"):
        motley.run({**BASE, "until": 1e-6})


def test_a_run_with_an_end_in_time_is_resumed_to_the_same_end(tmp_path: Path) -> None:
    end = motley.run(BASE).records[3].virtual_time * 1.0001
    recipe = load({**BASE, "rounds": 99, "until": end, "method": "scaffold"})

    def stop(record: Record) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(recipe, tmp_path / "run", [stop])
    resumed, whole = motley.resume(tmp_path / "run"), launch(recipe)
    assert facts(resumed.records) == facts(whole.records)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    assert resumed.summary["ended"] == "until"


# ------------------------------------------------------------------------------------------ initial


def test_initial_starts_from_another_runs_model(tmp_path: Path) -> None:
    first = motley.run(BASE, folder=tmp_path / "first")
    for source in (tmp_path / "first", tmp_path / "first" / "model.safetensors"):
        run = Run(prepare(load({**BASE, "initial": str(source), "seed": 7})))
        assert torch.equal(run.model, first.params)
        run.close()
    second = motley.run({**BASE, "initial": str(tmp_path / "first"), "rounds": 1})
    assert second.summary["model_sha256"] != motley.run({**BASE, "rounds": 1}).summary["model_sha256"]


@pytest.mark.parametrize(
    ("source", "changes", "told"),
    [
        ("nowhere", {}, "initial model .*nowhere cannot be read"),
        ("first", {"model": "mlp(hidden=[9])"}, r"does not fit this network: 'fc1.weight' has the shape \(8, 64\)"),
        ("first", {"model": "mlp(hidden=[8, 8])"}, "does not fit this network"),
        ("text", {}, "initial model .*text cannot be read"),
    ],
)
def test_initial_models_that_cannot_be_used_are_told(
    source: str, changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    motley.run(BASE, folder=tmp_path / "first", rounds=1)
    (tmp_path / "text").write_text("a model")
    with pytest.raises(StateError, match=told):
        motley.run({**BASE, "initial": str(tmp_path / source), **changes}, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_from_another_model_is_resumed(tmp_path: Path) -> None:
    motley.run(BASE, folder=tmp_path / "first")
    recipe = load({**BASE, "initial": str(tmp_path / "first"), "method": "fedavg+ama"})
    whole = launch(recipe)

    def stop(record: Record) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(recipe, tmp_path / "run", [stop])
    assert motley.resume(tmp_path / "run").summary["model_sha256"] == whole.summary["model_sha256"]


# ------------------------------------------------------------------------------------------ listeners


class Noted(Listener):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begun(self, run: Run) -> None:
        self.told.append(f"begun with {len(run.records)}")

    def round_ended(self, run: Run, record: Record) -> None:
        self.told.append(f"ended {record.round}")

    def evaluated(self, run: Run, record: Record) -> None:
        self.told.append(f"evaluated {record.round}")

    def saved(self, run: Run, number: int) -> None:
        self.told.append(f"saved {number}")

    def finished(self, run: Run, result: Result) -> None:
        self.told.append(f"finished {result.summary['rounds']}")


def test_listeners_are_told_everything_in_order(tmp_path: Path) -> None:
    noted = Noted()
    launch(load({**BASE, "rounds": 2, "evaluate_every": 2}), tmp_path / "run", [noted])
    expected = ["begun with 0", "saved 0", "saved 1", "ended 1", "saved 2", "ended 2", "evaluated 2", "finished 2"]
    assert noted.told == expected


def test_a_resumed_run_begins_with_what_was_before(tmp_path: Path) -> None:
    launch(load({**BASE, "rounds": 3}), tmp_path / "run")
    noted = Noted()
    motley.resume(tmp_path / "run", [noted], changes=["rounds=4"])
    assert noted.told[0] == "begun with 3"
    assert noted.told[-1] == "finished 4"


def test_a_listener_may_stop_a_run() -> None:
    class Enough(Listener):
        def round_ended(self, run: Run, record: Record) -> None:
            if record.round == 3:
                run.stop("enough")

    result = launch(load({**BASE, "rounds": 50}), None, [Enough()])
    assert (len(result.records), result.summary["ended"]) == (3, "enough")
    assert result.summary["model_sha256"] == launch(load({**BASE, "rounds": 3})).summary["model_sha256"]


def test_what_a_listener_raises_ends_the_run_after_a_checkpoint(tmp_path: Path) -> None:
    def broken(record: Record) -> None:
        if record.round == 3:
            raise ZeroDivisionError

    recipe = load({**BASE, "checkpoint_seconds": 1e6})
    with pytest.raises(ZeroDivisionError):
        launch(recipe, tmp_path / "run", [broken])
    noted = Noted()
    resumed = motley.resume(tmp_path / "run", [noted])
    assert noted.told[0] == "begun with 3"
    assert resumed.summary["model_sha256"] == launch(recipe).summary["model_sha256"]


# ------------------------------------------------------------------------------------------ refused, and freed


@pytest.fixture
def loops() -> Iterator[list[int]]:
    """How many executors named ``counted`` are open: counted up when made, down when closed."""
    open_now = [0]

    class Counted(Loop):
        def close(self) -> None:
            open_now[0] -= 1

    def counted(site: Any) -> Counted:
        open_now[0] += 1
        return Counted(site)

    EXECUTORS.add("counted", hidden=("site",))(counted)
    yield open_now
    EXECUTORS.entries.pop("counted")


def saved(folder: Path) -> dict[str, Any]:
    """Arguments of `motley.train` for a run that is saved there and stopped after two rounds."""
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    settings: dict[str, Any] = {"model": torch.nn.Linear(4, 2), "data": (x, (x.sum(1) > 0).long()), "rounds": 3}
    settings |= {"clients": 4, "cohort": 2, "executor": "counted", "checkpoint_seconds": 0.0, "folder": folder}

    def stop(record: Record) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        motley.train(**settings, listeners=[stop])
    return settings


def test_an_executor_is_closed_when_a_run_ends_however_it_does(loops: list[int], tmp_path: Path) -> None:
    settings = saved(tmp_path / "run")
    assert loops == [0]
    motley.train(**settings, resume=True)
    assert loops == [0]


@pytest.mark.parametrize("damage", ["state", "log"])
def test_a_failing_resume_leaves_no_executor_behind(damage: str, loops: list[int], tmp_path: Path) -> None:
    settings = saved(tmp_path / "run")
    if damage == "log":
        (tmp_path / "run" / "rounds.jsonl").write_text("")
    else:
        next((tmp_path / "run" / "checkpoint").glob("state-*")).write_bytes(b"")
    with pytest.raises(StateError):
        motley.train(**settings, resume=True)
    assert loops == [0]


def test_a_directory_that_is_taken_leaves_no_executor_behind(loops: list[int], tmp_path: Path) -> None:
    settings = saved(tmp_path / "run")
    with pytest.raises(StateError, match="holds a run already"):
        motley.train(**settings)
    assert loops == [0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"options": {"foo": 1}}, "The protocol 'synchronous' has no option 'foo'; its options are: none"),
        ({"options": {"foo": 1}, "method": "fedbuff"}, "has no option 'foo'; its options are: concurrency, buffer"),
        ({"options": {"buffer": 0}, "method": "fedbuff"}, "buffer=0; it must be a whole number of at least 1"),
        ({"executor": "pool(foo=1)"}, "foo"),
        ({"diagnostics": ["diversty"]}, "did you mean 'diversity'"),
        ({"problem": "regresion"}, "did you mean 'regression'"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=told):
        motley.run({**BASE, **changes}, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_model_of_a_run_is_a_file_that_others_read(tmp_path: Path) -> None:
    result = motley.run(BASE, folder=tmp_path / "run")
    named = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    assert {name: tuple(value.shape) for name, value in named.items()} == {
        name: tuple(value.shape) for name, value in result.model.named_parameters()
    }
    assert all(torch.equal(named[name], value.detach()) for name, value in result.model.named_parameters())
