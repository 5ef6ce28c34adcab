"""The command: processes of their own for broker, server and agents, some of them killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def motley(*words: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "motley", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=environment)


@pytest.mark.parametrize(("kills", "rounds"), [(0, 3), (3, 40)])
def test_a_rehearsal_gives_the_simulations_model(kills: int, rounds: int, tmp_path: Path) -> None:
    done = motley(
        *("rehearse", "digits", "--clients", "3", f"rounds={rounds}", "model=logistic", "--kills", str(kills)),
        *("--seed", "1", "--out", str(tmp_path), "--json"),
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["equal"] is True
    assert told["model_sha256"] == told["simulated_sha256"]
    assert told["kills"] == kills
    assert told["receipts_lost"] == 0
    assert told["receipts"] >= 3
    assert told["bytes_up"] > 0
    assert told["bytes_down"] > 0
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False).stdout.split()
    assert left == [], "processes were left behind"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("diagnostics=[stability]",), "samples"),
        (("fleet=delay(probability=0.5,seconds=2)",), "loses or delays"),
        (("--clients", "0"), "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_deployed_is_refused(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    done = motley("rehearse", "digits", *words, "--out", str(tmp_path))
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
