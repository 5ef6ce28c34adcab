"""Runs that are followed elsewhere: what each tracker is told, and that a resumed run goes on in the same place."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import motley
from motley.core.errors import InputError
from motley.runtime.records import Record
from motley.runtime.trackers import make_trackers, numbers

BASE: dict[str, Any] = {
    "data": "digits", "clients": 8, "cohort": 3, "rounds": 4, "model": "mlp(hidden=[8])", "executor": "loop",
    "checkpoint_seconds": 0.0, "diagnostics": ["diversity", "per_class"],
}  # fmt: skip


def interrupt(record: Record) -> None:
    if record.round == 2:
        raise KeyboardInterrupt


def in_two_goes(folder: Path, track: str) -> motley.Result:
    """A run that is interrupted after its second round and resumed."""
    with pytest.raises(KeyboardInterrupt):
        motley.run(BASE, folder, [interrupt], track=track)
    return motley.resume(folder)


def test_the_numbers_of_a_round() -> None:
    record = Record(3, 1.5, 2.0, 4, 3, 1, 0, 10, 20, 0.7, {"accuracy": 0.5, "loss": 1.0}, [], {})
    record.extra = {"validation_loss": 2.0, "diversity": 0.1, "per_class": [1.0], "flag": True}
    assert dict(numbers(record)) == {
        "test/accuracy": 0.5, "test/loss": 1.0, "train/loss": 0.7, "round/virtual_time": 1.5, "round/wall_time": 2.0,
        "round/participants": 4.0, "round/arrived": 3.0, "round/lost": 1.0, "round/late": 0.0, "round/bytes_up": 10.0,
        "round/bytes_down": 20.0, "validation/loss": 2.0, "more/diversity": 0.1,
    }  # fmt: skip


def test_no_tracker_changes_the_model_or_the_name_of_a_run() -> None:
    assert motley.load_recipe(BASE, {"track": "wandb"}).identity == motley.load_recipe(BASE).identity


@pytest.mark.filterwarnings("ignore")
def test_tensorboard(tmp_path: Path) -> None:
    """The real one: what its own reader finds in the files."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = in_two_goes(tmp_path / "run", "tensorboard")
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    told = [(event.step, event.value) for event in found.Scalars("test/accuracy")]
    assert told == [(record.round, pytest.approx(record.accuracy)) for record in result.records]
    assert "more/diversity" in found.Tags()["scalars"]


def fake_mlflow(told: list[Any]) -> Any:
    def start_run(run_id: str | None = None, run_name: str | None = None) -> Any:
        told.append(("start", run_id, run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or "abc"))

    return types.SimpleNamespace(
        set_tracking_uri=lambda uri: told.append(("uri", uri)),
        set_experiment=lambda name: told.append(("experiment", name)),
        start_run=start_run,
        log_params=lambda found: told.append(("params", found["method"], found["cohort"])),
        log_metrics=lambda found, step: told.append(("metrics", step, found["test/accuracy"])),
        log_artifact=lambda path: told.append(("artifact", Path(path).is_file())),
        end_run=lambda: told.append(("end",)),
    )


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setitem(sys.modules, "mlflow", fake_mlflow(told))
    monkeypatch.setitem(BASE, "method", "fedprox")
    result = in_two_goes(tmp_path / "run", "mlflow(experiment=mine, uri='file:x')")
    scores = [record.accuracy for record in result.records]
    begin = [("uri", "file:x"), ("experiment", "mine")]
    first = [*begin, ("start", None, "run"), ("params", "fedprox", "3")]
    first += [("metrics", 1, scores[0]), ("metrics", 2, scores[1])]
    second = [*begin, ("start", "abc", None), ("metrics", 3, scores[2]), ("metrics", 4, scores[3])]
    assert told == [*first, *second, ("artifact", True), ("end",)]


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    class FakeRun:
        id = "xyz"
        summary: dict[str, Any] = {}  # noqa: RUF012

        def log(self, found: dict[str, float], step: int) -> None:
            told.append((step, found["test/accuracy"]))

        def finish(self) -> None:
            told.append(self.summary["rounds"])

    def init(**given: Any) -> FakeRun:
        told.append((given["project"], given["mode"], given.get("id"), given.get("resume"), given["config"]["rounds"]))
        return FakeRun()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    result = in_two_goes(tmp_path / "run", "wandb(project=mine, mode=offline)")
    scores = [(record.round, record.accuracy) for record in result.records]
    begun, again = ("mine", "offline", None, None, 4), ("mine", "offline", "xyz", "allow", 4)
    assert told == [begun, *scores[:2], again, *scores[2:], 4]
    assert json.loads((tmp_path / "run" / "wandb.json").read_text()) == {"id": "xyz"}


def test_a_library_that_is_missing_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match="needs wandb: pip install wandb"):
        motley.run(BASE, tmp_path / "run", track="wandb")
    assert not (tmp_path / "run").exists()


def test_names_and_arguments_are_checked() -> None:
    with pytest.raises(InputError, match="did you mean 'tensorboard'"):
        make_trackers("tensorbord")
    with pytest.raises(InputError, match="its arguments are: project, entity, mode"):
        make_trackers("wandb(name=x)")
