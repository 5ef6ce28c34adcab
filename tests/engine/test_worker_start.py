"""Scripts that worker processes cannot import: one sentence, and no waiting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """\
import motley
try:
    motley.run("digits", rounds=1, executor="pool(workers=2)")
except motley.InputError as error:
    print(error)
"""
GUARDED = "import motley\nif __name__ == '__main__':\n" + "\n".join("    " + line for line in SCRIPT.splitlines()[1:])


def started(folder: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, input=text, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("how", ["script", "stdin"])
def test_what_workers_cannot_import_is_told(tmp_path: Path, how: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = started(tmp_path, "script.py") if how == "script" else started(tmp_path, "-", text=SCRIPT)
    assert ended.returncode == 0
    assert ended.stderr == ""
    assert ended.stdout.count("\n") == 1
    assert 'if __name__ == "__main__":' in ended.stdout
    assert "executor=loop" in ended.stdout


def test_a_guarded_script_has_a_pool(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(GUARDED)
    ended = started(tmp_path, "script.py")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
