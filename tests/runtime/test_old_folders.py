"""Directories of runs that an older Motley made: what can be read is read, the rest is told in one sentence."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

import motley
from motley.core.errors import StateError
from motley.report.run_data import read_run
from motley.runtime.launch import open_run, read_summary
from motley.runtime.records import read_records

RECIPE = """name = "digits"
summary = "Digits, two classes per client"
data = "digits"
partition = "classes(per_client=2)"
augment = ""
fold = 0
clients = 8
fleet = "ideal"
model = "logistic"
method = "scaffold"
rounds = 4
cohort = 3
epochs = 5.0
batch_size = 16
lr = 0.05
lr_decay = 1.0
optimizer = "sgd"
deadline = 30.0
on_bad_update = "stop"
evaluate_every = 1
diagnostics = []
seed = 0
precision = "float32"
executor = "{executor}"
workers = 0
device = "auto"
checkpoint_seconds = 0.0
state_memory_mb = 1024.0
"""
ROUNDS = """{"round": 1, "virtual_time": 0.0013, "wall_time": 0.1, \
"participants": 3, "arrived": 3, "lost": 0, "late": 0, \
"bytes_up": 15600, "bytes_down": 15600, "train_loss": 0.066, "accuracy": 0.376, "loss": 2.16, "macro_f1": 0.249}
{"round": 2, "virtual_time": 0.0026, "wall_time": 0.2, "participants": 3, "arrived": 2, "lost": 1, "late": 0, \
"bytes_up": 10400, "bytes_down": 15600, "train_loss": 0.094, "accuracy": 0.343, "loss": 1.99, "macro_f1": 0.272, \
"staleness": [0, 1], "extra": {"stragglers": 1}}
"""


@pytest.fixture(params=["loop", "auto"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run of format 1 that was stopped after two rounds."""
    folder = tmp_path / "old"
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "recipe.toml").write_text(RECIPE.replace("{executor}", str(request.param)))
    (folder / "rounds.jsonl").write_text(ROUNDS)
    (folder / "environment.json").write_text('{"motley": "0.1.0"}')
    state = safetensors.torch.save({"weights": torch.zeros(650), "server/control_variates/c": torch.zeros(650)})
    (folder / "checkpoint" / "state-000002.safetensors").write_bytes(state)
    index = {"version": 1, "round": 2, "now": 0.0026, "state": "state-000002.safetensors"}
    index |= {"sha256": hashlib.sha256(state).hexdigest(), "clients": {"where": {}, "segments": {}, "next": 0}}
    index |= {"flights": [], "upload_bytes": [2600, None], "wall": 0.2, "motley": "0.1.0", "executor": "loop"}
    (folder / "checkpoint" / "checkpoint.json").write_text(json.dumps(index))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """Everything in a directory but the lock of whoever tried to train."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_its_records_and_recipe_are_read(old: Path) -> None:
    first, second = read_records(old / "rounds.jsonl")
    assert first.scores == {"accuracy": 0.376, "loss": 2.16, "macro_f1": 0.249}
    assert (second.accuracy, second.loss, second.staleness, second.extra) == (0.343, 1.99, [0, 1], {"stragglers": 1})
    assert [record.judged for record in (first, second)] == [True, True]
    recipe = open_run(old)
    assert (recipe.method, recipe.clients, recipe.deadline, recipe.problem) == ("scaffold", 8, 30.0, "classification")


def test_it_is_reported(old: Path) -> None:
    run = read_run(old)
    assert (run.headline, run.history, run.best, run.summary) == ("accuracy", [0.376, 0.343], 0.376, None)
    (old / "summary.json").write_text('{"rounds": 2, "accuracy": 0.343, "best_accuracy": 0.4, "model_sha256": "6aa0"}')
    assert read_run(old).best == 0.4
    assert (read_summary(old) or {})["rounds"] == 2


def test_resuming_it_says_what_to_do_and_leaves_it_as_it_is(old: Path) -> None:
    before = content(old)
    with pytest.raises(StateError, match="is of format 1, this Motley reads 2; finish the run with") as caught:
        motley.resume(old)
    assert "or start it anew (its records can still be reported)." in str(caught.value)
    assert "\n" not in str(caught.value)
    assert content(old) == before


def test_a_new_run_in_its_place_is_refused(old: Path) -> None:
    with pytest.raises(StateError, match="holds a run already"):
        motley.run(open_run(old), folder=old)


def test_starting_from_its_model_says_that_there_is_none(old: Path) -> None:
    with pytest.raises(StateError, match=r"holds no model\.safetensors to start from: finish that run"):
        motley.run("digits", model="logistic", initial=str(old))


def test_the_same_recipe_is_run_anew(old: Path, tmp_path: Path) -> None:
    result = motley.run(open_run(old), folder=tmp_path / "new", rounds=2)
    assert [record.round for record in read_records(tmp_path / "new" / "rounds.jsonl")] == [1, 2]
    assert result.summary["rounds"] == 2
