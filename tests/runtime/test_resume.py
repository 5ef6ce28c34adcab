"""A run that was killed anywhere goes on to exactly the result it would have had."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from motley.core import codec, files
from motley.core.errors import StateError
from motley.core.keys import Key
from motley.runtime import checkpoint
from motley.runtime.launch import Run, resume
from motley.runtime.listeners import Listener
from motley.runtime.records import Record, read_records
from tests.runtime.killable import CASES, again, begin, facts, snapshots


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_killed_at_any_moment(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = begin(tmp_path / "whole", case)
    with monkeypatch.context() as patched:
        taken = snapshots(patched, tmp_path / "watched", tmp_path / "taken", "checkpoint/checkpoint.json")
        watched = begin(tmp_path / "watched", case)
    assert watched.summary["model_sha256"] == whole.summary["model_sha256"]
    assert len(taken) > 40
    chance = Key.root(1).fold("kill", case).generator()
    for number in sorted(chance.choice(len(taken), 14, replace=False).tolist()):
        result = again(taken[number], case)
        assert result.summary["model_sha256"] == whole.summary["model_sha256"], f"snapshot {number}"
        assert facts(result.records) == facts(whole.records), f"snapshot {number}"
        assert facts(read_records(taken[number] / "rounds.jsonl")) == facts(whole.records)


class Left(Listener):
    """What a checkpoint has to hold beside the model."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def saved(self, run: Run, number: int) -> None:
        self.seen.update(task.status for task in run.fed.ledger.book.open)

    def round_ended(self, run: Run, record: Record) -> None:
        self.seen.update(stale=len(record.staleness), lost=record.lost)


def test_the_cases_are_hard_enough(tmp_path: Path) -> None:
    """At the ends of rounds there were tasks out, held back, and arrived but not taken."""
    left = Left()
    for case in ("ties", "uneven"):
        begin(tmp_path / case, case, listeners=[left])
    assert all(left.seen[what] >= 3 for what in ("out", "held", "arrived", "stale", "lost")), left.seen


def test_interrupted_in_the_middle_of_a_round(tmp_path: Path) -> None:
    """As by Ctrl-C: the round that was cut off is trained again."""
    whole = begin(tmp_path / "whole", "ties")

    def stop(record: Any) -> None:
        if record.round == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin(tmp_path / "cut", "ties", listeners=[stop])
    result = again(tmp_path / "cut", "ties")
    assert result.summary["model_sha256"] == whole.summary["model_sha256"]
    assert facts(result.records) == facts(whole.records)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    whole = begin(tmp_path / "run", "ties")
    result = again(tmp_path / "run", "ties")
    assert result.summary["model_sha256"] == whole.summary["model_sha256"]
    assert facts(result.records) == facts(whole.records)


@pytest.mark.slow
def test_killed_by_the_system(tmp_path: Path) -> None:
    """kill -9, twice at random points, with client state on disk."""
    whole = begin(tmp_path / "whole", "ties", rounds=60)
    folder = tmp_path / "killed"
    chance = Key.root(2).fold("kill -9").generator()
    at = 0
    for _ in range(2):
        at += int(chance.integers(5, 25))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.runtime.killable", str(folder), "ties", "60"], env=environment
        )
        log = folder / "rounds.jsonl"
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up and process.poll() is None:
            if log.exists() and log.read_bytes().count(b"\n") >= at:
                break
            time.sleep(0.001)
        assert process.poll() is None, "the run ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert not (folder / "summary.json").exists()
    result = again(folder, "ties")
    assert result.summary["model_sha256"] == whole.summary["model_sha256"]
    assert facts(result.records) == facts(whole.records)


# ------------------------------------------------------------------------------------------ damage


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run that stopped after 5 of 12 rounds."""

    def stop(record: Any) -> None:
        if record.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin(tmp_path / "run", "scaffold", listeners=[stop])
    return tmp_path / "run"


def state_file(folder: Path, pattern: str = "state-*.safetensors") -> Path:
    return sorted((folder / "checkpoint").glob(pattern))[0]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def edit(**changes: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return change


JSON = "checkpoint.json"
DAMAGE: list[tuple[str, str, Callable[[Path], Any], str]] = [
    ("cut state", "state-*", cut, "changed or cut off; restore it from a copy, or start the run anew"),
    ("changed state", "state-*", flip, "changed or cut off"),
    ("no state", "state-*", Path.unlink, "is missing"),
    ("changed segment", "clients-*", flip, "is changed"),
    ("no segment", "clients-*", Path.unlink, "is missing"),
    ("cut index", JSON, cut, "is not valid JSON"),
    ("no text", JSON, lambda path: path.write_bytes(b"\xff\xfe\x00"), "is not valid JSON"),
    ("not a table", JSON, lambda path: path.write_text("[1]"), "is not a table"),
    ("no index", JSON, Path.unlink, "There is no checkpoint in"),
    ("other version", JSON, edit(version=99), "is of format 99, this Motley reads 2"),
    ("no round", JSON, edit(round=None), "'round' is missing"),
]


@pytest.mark.parametrize(("pattern", "damage", "message"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE])
def test_damage_is_told_in_one_sentence(saved: Path, pattern: str, damage: Callable[[Path], Any], message: str) -> None:
    damage(state_file(saved, pattern))
    with pytest.raises(StateError, match=message) as caught:
        again(saved, "scaffold")
    assert "\n" not in str(caught.value)


def test_a_log_that_was_cut_off_is_told(saved: Path) -> None:
    (saved / "rounds.jsonl").write_text("")
    with pytest.raises(StateError, match="holds 0 rounds, the checkpoint 5; start anew"):
        again(saved, "scaffold")


def test_half_a_line_after_the_checkpoint_is_dropped(saved: Path) -> None:
    with (saved / "rounds.jsonl").open("a") as log:
        log.write('{"round": 6, "virt')
    assert [record.round for record in again(saved, "scaffold").records] == list(range(1, 13))


def test_a_run_that_another_process_trains_is_left_alone(saved: Path) -> None:
    with files.held(saved), pytest.raises(StateError, match="Another process is training the run"):
        again(saved, "scaffold")
    again(saved, "scaffold")


def test_what_is_not_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"is not the directory of a run: there is no recipe\.toml"):
        resume(tmp_path)


def test_a_directory_that_holds_a_run_is_not_overwritten(saved: Path) -> None:
    with pytest.raises(StateError, match="holds a run already; continue it with 'motley resume'"):
        begin(saved, "scaffold")


def test_nothing_is_left_over(tmp_path: Path) -> None:
    """One state file, only the segments the index names, no half-written files."""
    begin(tmp_path / "run", "scaffold")
    place = tmp_path / "run" / "checkpoint"
    content = checkpoint.read(place)
    state = checkpoint.load(place, content, "cpu")
    assert {path.name for path in place.iterdir()} == {JSON, content["state"], *state["carrier"]["clients"]["segments"]}


def test_files_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, {"x": 1})

    def broken(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        files.write_json(path, {"x": 2})
    assert json.loads(path.read_text()) == {"x": 1}


def test_state_may_share_memory_with_the_model(tmp_path: Path) -> None:
    """A part that remembers the last global model holds the very tensor the federation holds."""
    matrix = torch.arange(12.0).view(3, 4)
    named = {"a": matrix, "again": matrix, "row": matrix[1], "column": matrix[:, 1]}
    digest = codec.write(tmp_path / "x.safetensors", named)
    assert digest == files.sha256_of(tmp_path / "x.safetensors")
    back = codec.read(tmp_path / "x.safetensors")
    assert back.keys() == named.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in named.items())


def test_the_hash_of_a_model_is_of_its_bytes() -> None:
    values = [1.0, -2.5, 3.25]
    expected = hashlib.sha256(np.array(values, np.float32).tobytes()).hexdigest()
    assert checkpoint.flat_sha256(torch.tensor(values, dtype=torch.float64)) == expected
