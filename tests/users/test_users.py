"""What new users do, written from the documentation alone: each script asserts what they expect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPTS = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("__init__", Path(__file__).stem))


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_script_does_what_its_user_expects(script: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(HERE / f"{script}.py"), str(tmp_path)], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
