"""What a run writes down: about where it was made, and which round validation chooses."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import pytest

from motley.client.problems import Classification
from motley.runtime.records import Record, read_records, source_version, validations


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_changed_files_are_told_from_committed_ones(tmp_path: Path) -> None:
    assert source_version(tmp_path) is None
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("1\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "first")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    commit = source_version(package)
    assert commit
    assert not commit.endswith("+")
    (tmp_path / "results.txt").write_text("elsewhere\n")
    assert source_version(package) == commit
    (package / "a.py").write_text("2\n")
    assert source_version(package) == commit + "+"
    (package / "a.py").write_text("1\n")
    (package / "b.py").write_text("new\n")
    assert source_version(package) == commit + "+"


def test_the_round_that_validation_chooses() -> None:
    records = [
        Record(
            t,
            *(0.0, 0.0, 1, 1, 0, 0, 0, 0),
            scores={"accuracy": a, "loss": 1.0},
            extra={"validation_accuracy": v, "validation_loss": s},
        )
        for t, a, v, s in ((1, 0.5, 0.6, math.nan), (2, 0.7, 0.9, 0.4), (3, 0.8, 0.9, 0.3), (4, 0.9, 0.2, math.inf))
    ]
    found = validations(records, Classification().goals)
    assert found["accuracy"] == {"round": 2, "validation": 0.9, "test": 0.7}, "of equal ones the first"
    assert found["loss"]["round"] == 3, "a loss that is not a number is not the least"
    assert set(found) == {"accuracy", "loss"}


def test_records_come_back(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    scores = {"accuracy": 0.9, "loss": 0.3, "macro_f1": 0.8}
    one = Record(1, 2.5, 0.1, 10, 8, 1, 1, 100, 200, 0.5, scores, [1, 2], {"hops": [1, 2], "dc": None})
    two = Record(2, 3.5, 0.2, 0, 0, 0, 0, 0, 0, train_loss=float("nan"), scores={"loss": float("inf")})
    path.write_text(one.to_line() + "\n" + two.to_line() + "\n" + '{"round": 3')
    back = read_records(path)
    assert back[0] == one
    assert (back[0].accuracy, back[0].loss, back[0].score("macro_f1")) == (0.9, 0.3, 0.8)
    assert (back[1].round, back[1].train_loss, back[1].loss, back[1].lost) == (2, None, None, 0)
    assert not back[1].judged
    assert len(back) == 2
    assert "NaN" not in path.read_text()
    assert "Infinity" not in path.read_text()
