"""``motley run`` and ``motley resume``."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Motley

SMALL = ("rounds=2", "epochs=1")
KEYS = {
    "run", "rounds", "accuracy", "best_accuracy", "loss", "virtual_time", "bytes_up", "bytes_down", "lost", "late",
    "model_sha256", "seed", "wall_s",
}  # fmt: skip


def test_run_ends_with_one_json_object(motley: Motley) -> None:
    end = motley("run", "digits", *SMALL, "seed=3", "--json")
    assert end.code == 0
    assert end.err == ""
    assert end.out.count("\n") == 1
    assert set(end.last) >= KEYS
    assert (end.last["rounds"], end.last["seed"]) == (2, 3)
    folder = Path(end.last["run"])
    assert folder.parent == Path("runs")
    assert {path.name for path in folder.iterdir()} >= {
        "recipe.toml", "environment.json", "rounds.jsonl", "checkpoint", "summary.json",
    }  # fmt: skip
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 2


def test_quiet_is_one_line(motley: Motley, tmp_path: Path) -> None:
    end = motley("run", "digits", *SMALL, "--quiet", "--out", tmp_path / "elsewhere")
    assert end.out.count("\n") == 1
    assert end.out.startswith("elsewhere/digits-scaffold-s0-")
    assert "after 2 rounds" in end.out


def test_two_runs_of_one_recipe_have_two_directories_and_one_model(motley: Motley) -> None:
    first, second = (motley("run", "digits", *SMALL, "--json").last for _ in range(2))
    assert first["run"] != second["run"]
    assert first["model_sha256"] == second["model_sha256"]


def test_recipe_file_and_combined_methods(motley: Motley, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('data = "digits"\nmethod = "fedprox+ama"\nrounds = 1\n')
    end = motley("run", "mine.toml", "cohort=2", "params.fedprox.mu=0.5", "--json")
    assert end.code == 0
    saved = (Path(end.last["run"]) / "recipe.toml").read_text()
    assert 'name = "mine"' in saved
    assert "fedprox = { mu = 0.5 }" in saved


def test_several_seeds(motley: Motley) -> None:
    end = motley("run", "digits", *SMALL, "seeds=2", "seed=4", "--json")
    assert end.last["seed"] == [4, 5]
    assert len(end.last["run"]) == len(set(end.last["model_sha256"])) == 2
    finals = [json.loads((Path(run) / "summary.json").read_text())["accuracy"] for run in end.last["run"]]
    assert end.last["accuracy"] == pytest.approx(sum(finals) / 2)
    assert end.last["accuracy_interval"] == pytest.approx(12.706 * abs(finals[0] - finals[1]) / 2, rel=1e-3)
    told = motley("run", "digits", *SMALL, "seeds=1,7")
    assert "seed 1" in told.out
    assert "seed 7" in told.out
    assert told.out.splitlines()[-1].startswith("2 seeds: accuracy")


def test_compare_runs_both_and_reports(motley: Motley) -> None:
    end = motley("run", "digits", *SMALL, "--compare", "method=fedavg", "--json")
    assert [row["label"] for row in end.last["rows"]] == ["scaffold", "fedavg"]
    assert end.last["compared"][0]["model_sha256"] != end.last["model_sha256"]
    assert Path(end.last["plot"]).read_bytes().startswith(b"\x89PNG")
    wrong = motley("run", "digits", *SMALL, "--compare", "method=fedavq", "--out", "other")
    assert wrong.code == 2
    assert not Path("other").exists()


def test_resume_of_a_finished_run_and_what_it_may_change(motley: Motley) -> None:
    done = motley("run", "digits", *SMALL, "--json").last
    again = motley("resume", done["run"], "executor=loop", "--json")
    assert again.code == 0
    assert again.last["model_sha256"] == done["model_sha256"]
    refused = motley("resume", done["run"], "lr=1")
    assert refused.code == 2
    assert "cannot change 'lr'" in refused.err


def test_a_person_at_a_terminal_sees_progress_and_a_table(tmp_path: Path) -> None:
    """Also shows that it is quick to say what it does: under a pseudo-terminal, with colours and a bar."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "motley", "run", "digits", "rounds=3", "epochs=1"]
    environment = {**os.environ, "COLUMNS": "140", "TERM": "xterm", "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=tmp_path, env=environment) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                block = os.read(ours, 65536)
            except OSError:
                break
            if not block:
                break
            seen += block
    os.close(ours)
    text = seen.decode()
    assert process.returncode == 0
    for word in ("clients/s", "accuracy", "virtual", "3/3", "saved in", "traffic"):
        assert word in text
