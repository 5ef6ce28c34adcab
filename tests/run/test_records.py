"""What a run writes down about where it was made."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from motley.run.records import source_version


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
