"""``motley new``: the project that it makes runs, is resumed, and passes its own test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Motley

ROOT = Path(__file__).parents[2]


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_new_project_runs(motley: Motley, tmp_path: Path) -> None:
    made = motley("new", "my-experiment", "--json")
    assert made.code == 0, made.err
    project = tmp_path / "my-experiment"
    assert set(made.last["files"]) == {
        "README.md", "recipe.toml", "look.py", "my_experiment/__init__.py", "my_experiment/data.py",
        "my_experiment/model.py", "my_experiment/part.py", "tests/test_part.py",
    }  # fmt: skip
    run = call(project, "-m", "motley", "run", "recipe.toml", "--json")
    assert run.returncode == 0, run.stderr
    end = json.loads(run.stdout.splitlines()[-1])
    assert end["accuracy"] > 0.8
    again = call(tmp_path, "-m", "motley", "resume", str(project / end["run"]), "rounds=32", "stop=none", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["rounds"] == 32
    looked = call(project, "look.py")
    assert looked.returncode == 0, looked.stderr
    assert "round  10  accuracy" in looked.stdout
    assert (project / "model.safetensors").is_file()
    tested = call(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert tested.returncode == 0, tested.stdout


def test_what_its_readme_shows_is_there(motley: Motley, tmp_path: Path) -> None:
    motley("new", "other")
    text = (tmp_path / "other" / "README.md").read_text()
    assert "$" not in text
    listed = call(tmp_path / "other", "-m", "motley", "--import", "other", "list", "parts", "--json")
    assert "other_calm" in listed.stdout
    assert "`other_calm`" in text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("json", "There is a Python package 'json' already"),
        ("torch", "There is a Python package 'torch' already"),
        ("2nd", "cannot be the name of a Python package"),
        ("class", "cannot be the name of a Python package"),
        ("taken", "There is something at taken already"),
    ],
)
def test_names_that_cannot_be(name: str, told: str, motley: Motley, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("")
    end = motley("new", name)
    assert (end.code, told in end.err) == (2, True)
