"""Ctrl-C and kill -9 leave a run that resumes to the same model, and no process behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from motley.runtime.launch import run
from motley.runtime.recipe import load

ROOT = Path(__file__).parents[2]
RECIPE = ("digits", "rounds=90", "checkpoint_seconds=0.1", "workers=2")
ENDS = [("loop", signal.SIGINT), ("loop", signal.SIGTERM), ("pool", signal.SIGINT), ("pool", signal.SIGKILL)]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "motley", *arguments]
    # A session of its own, as a terminal gives: what is left of it afterwards can be found. And Ctrl-C is heard, which
    # is not so in what a shell without a terminal runs in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, before)


def wait_for_rounds(folder: Path, rounds: int) -> Path:
    """The directory of the run, once it has done so many rounds."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for log in folder.glob("runs/*/rounds.jsonl"):
            if len(log.read_text().splitlines()) >= rounds:
                return log.parent
        time.sleep(0.02)
    raise AssertionError("the run does not get going")


def left(session: int) -> list[int]:
    """Living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, sid = path.read_text().rsplit(")", 1)[1].split()[:4]
        except (OSError, ValueError):
            continue
        if int(sid) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


def none_left(session: int) -> bool:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if not left(session):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def whole() -> str:
    """The model of the uninterrupted run."""
    model: str = run(load(RECIPE[0], [*RECIPE[1:], "executor=loop"])).summary["model_sha256"]
    return model


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(("executor", "how"), ENDS)
def test_interrupted_runs_resume(tmp_path: Path, whole: str, executor: str, how: signal.Signals) -> None:
    process = start(tmp_path, "run", *RECIPE, f"executor={executor}")
    folder = wait_for_rounds(tmp_path, 12)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does: everyone in the foreground gets it
    else:
        process.send_signal(how)
    out, err = process.communicate(timeout=30)
    assert none_left(process.pid)
    assert out == ""
    if how == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        command = ["motley", "resume", str(folder.relative_to(tmp_path))]
    else:
        assert process.returncode == 130
        assert re.fullmatch(r"Interrupted after round \d+ of 90; continue with: motley resume \S+\n", err)
        command = shlex.split(err.split("continue with: ")[1])
    assert "Traceback" not in err
    process = start(tmp_path, *command[1:], "--json")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    end = json.loads(out.splitlines()[-1])
    assert end["model_sha256"] == whole
    assert end["rounds"] == 90
    assert none_left(process.pid)
