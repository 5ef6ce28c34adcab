"""What a run writes down: about where it was made, and which round validation chooses."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import pytest

from motley.run.records import Record, source_version, validations


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
            t, 0.0, 0.0, 1, 1, 0, 0, 0, 0, accuracy=a, loss=1.0, extra={"validation_accuracy": v, "validation_loss": s}
        )
        for t, a, v, s in ((1, 0.5, 0.6, math.nan), (2, 0.7, 0.9, 0.4), (3, 0.8, 0.9, 0.3), (4, 0.9, 0.2, math.inf))
    ]
    found = validations(records)
    assert found["accuracy"] == {"round": 2, "validation": 0.9, "test": 0.7}, "of equal ones the first"
    assert found["loss"]["round"] == 3, "a loss that is not a number is not the least"
    assert set(found) == {"accuracy", "loss"}
