"""Terminals that know ASCII alone, pipes that nobody reads to their end, narrow windows, Ctrl-C while things load."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import motley
from motley.core.errors import UnknownNameError
from motley.report import progress
from tests.cli.test_interrupt import start

ROOT = Path(__file__).parents[2]
HEARD = 1 << (signal.SIGTERM - 1)


def test_an_ascii_terminal(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", "LANG": "C"}
    recipe = tmp_path / "größe.toml"
    recipe.write_text((ROOT / "motley" / "recipes" / "digits.toml").read_text())
    command = [sys.executable, "-m", "motley", "run", str(recipe), "rounds=1", "seeds=2"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "?" in ended.stdout


def test_a_pipe_that_nobody_reads_loses_no_run(tmp_path: Path) -> None:
    process = start(tmp_path, "run", "digits", "rounds=2", "seeds=2", "--json")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert (process.wait(timeout=120), process.stderr.read()) == (0, "")
    process.stderr.close()
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 2


@pytest.mark.parametrize("width", [40, 60, 120])
def test_a_narrow_window_keeps_the_numbers_that_matter(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()

    def console(**_: Any) -> Console:
        return Console(file=screen, width=width, force_terminal=True)

    monkeypatch.setattr("rich.console.Console", console)
    with progress.ProgressBar(True) as bar:
        motley.run("digits", rounds=3, listeners=[bar, lambda record: bar._bar.refresh()])
    shown = screen.getvalue()
    assert "3/3" in shown
    assert "accuracy" in shown
    assert "%" in shown
    assert "…" not in shown


def heard(process: subprocess.Popen[str]) -> bool:
    """Whether a process has come to where it sees to signals by itself."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return False
    return bool(int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16) & HEARD)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")
def test_ctrl_c_while_things_load(tmp_path: Path) -> None:
    chance = random.Random(0)
    for _ in range(8):
        process = start(tmp_path, "run", "digits", "rounds=2000", "executor=loop", "--json")
        give_up = time.monotonic() + 20
        while not heard(process) and time.monotonic() < give_up:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 3))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 130, err
        assert out == ""
        assert err.startswith("Interrupted")
        assert err.count("\n") == 1
        assert "Traceback" not in err


def test_names_that_are_far_away_are_not_suggested() -> None:
    error = UnknownNameError("part", "secure_aggregation", ["server_adagrad", "proximal", "proximal"])
    assert "did you mean" not in str(error)
    assert str(error).count("proximal") == 1
    assert "did you mean 'proximal'" in str(UnknownNameError("part", "proximel", ["server_adagrad", "proximal"]))


# ------------------------------------------------------------------ disks
def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """The system refuses files beyond a size, as a full disk would."""
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, SIZE)); from motley.commands.cli import main;"
        "sys.argv = ['motley', 'run', 'digits', 'rounds=8', 'executor=loop', 'checkpoint_seconds=0', '--quiet']; main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def ended(limit: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", limited.replace("(SIZE, SIZE)", f"({limit}, {limit})")]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )  # fmt: skip

    none = ended(8000)
    assert (none.returncode, none.stderr.count("\n")) == (2, 1), none.stderr
    assert "File too large. Nothing was saved; make room" in none.stderr


def _stop_at_four(record: Any) -> None:
    if record.round == 4:
        raise KeyboardInterrupt


def test_what_was_saved_before_the_disk_was_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from motley.core import files

    genuine = os.fsync

    def full(descriptor: int) -> None:
        if json.loads((tmp_path / "run/checkpoint/checkpoint.json").read_text())["round"] == 3:
            raise OSError(28, "No space left on device")
        genuine(descriptor)

    def begin_to_fail(record: Any) -> None:
        if record.round == 1:
            monkeypatch.setattr(files.os, "fsync", full)

    with pytest.raises(motley.InputError) as caught:
        motley.run("digits", rounds=6, folder=tmp_path / "run", checkpoint_seconds=0, listeners=[begin_to_fail])
    assert f"All up to round 3 is saved; make room and continue with: motley resume {tmp_path / 'run'}" in str(
        caught.value
    )
    monkeypatch.undo()
    assert not list((tmp_path / "run").rglob("*.tmp"))
    assert motley.resume(tmp_path / "run").summary["rounds"] == 6


# ------------------------------------------------------------------ the log
@pytest.mark.parametrize("left", [3.5, 3.0])
def test_a_last_line_that_was_cut_off_is_repaired(tmp_path: Path, left: float) -> None:
    with pytest.raises(KeyboardInterrupt):
        motley.run("digits", rounds=6, folder=tmp_path / "run", checkpoint_seconds=0, listeners=[_stop_at_four])
    log = tmp_path / "run" / "rounds.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    assert len(lines) == 4
    log.write_text("".join(lines[:3]) + (lines[3][:40] if left > 3 else ""))
    result = motley.resume(tmp_path / "run")
    assert [record.round for record in result.records] == [1, 2, 3, 4, 5, 6]
    assert log.read_text().splitlines(keepends=True)[:4] == lines


def test_the_log_is_on_the_disk_before_the_checkpoint_that_counts_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    from motley.runtime import checkpoint, launch

    genuine_flush, genuine_save = launch.flush, checkpoint.save
    monkeypatch.setattr(launch, "flush", lambda path: (seen.append(path.name), genuine_flush(path)))
    monkeypatch.setattr(checkpoint, "save", lambda *a: (seen.append("checkpoint"), genuine_save(*a)))
    motley.run("digits", rounds=2, folder=tmp_path / "run", checkpoint_seconds=0)
    assert seen == ["checkpoint", "rounds.jsonl", "checkpoint", "rounds.jsonl", "checkpoint"]


# ------------------------------------------------------------------ callbacks
def test_an_error_in_a_callback_leaves_a_run_that_resumes(tmp_path: Path) -> None:
    def broken(record: Any) -> None:
        if record.round == 3:
            raise ZeroDivisionError("in my callback")

    with pytest.raises(ZeroDivisionError, match="in my callback") as caught:
        motley.run("digits", rounds=5, folder=tmp_path / "run", listeners=[broken], checkpoint_seconds=1000)
    assert any(entry.name == "broken" for entry in caught.traceback)
    assert json.loads((tmp_path / "run/checkpoint/checkpoint.json").read_text())["round"] == 3
    whole = motley.run("digits", rounds=5)
    assert motley.resume(tmp_path / "run").summary["model_sha256"] == whole.summary["model_sha256"]
