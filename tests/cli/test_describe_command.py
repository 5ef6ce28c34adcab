"""``motley describe`` as a user calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def motley(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "motley", *arguments]
    around = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=around)


def test_page_picture_and_html(tmp_path: Path) -> None:
    done = motley(
        "describe", "digits", "clients=12", "fleet=freezefl+bernoulli(p=0.5)",
        "--png", "pages/d.png", "--html", "pages/d.html", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "12 clients" in done.stdout
    assert "Picture: pages/d.png" in done.stdout
    assert (tmp_path / "pages/d.png").read_bytes().startswith(b"\x89PNG")
    assert "<!doctype html>" in (tmp_path / "pages/d.html").read_text(encoding="utf-8")


def test_json_is_all_there_is_on_stdout() -> None:
    done = motley("describe", "digits", "clients=100", "epochs=15", "partition=iid", "fleet=fedsae", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    wanted = (
        "clients", "samples", "size_min", "size_max", "size_mean", "size_std", "gini", "c_score", "emd", "js",
        "classes_missed_by_cohort", "straggler_rate", "dropout_rate", "round_time",
    )  # fmt: skip
    for name in wanted:
        assert isinstance(found[name], (int, float)), name
    assert found["clients"] == 100
    assert abs(found["straggler_rate"] - 0.967) < 0.017


def test_wrong_input_is_one_sentence() -> None:
    done = motley("describe", "digits", "fleet=bernouli(p=0.5)")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        "Error: There is no fleet layer named 'bernouli'; did you mean 'bernoulli'?"
    ]
