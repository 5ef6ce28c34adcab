"""``motley --import``: modules of one's own, on the command line, in recipes, and found again on resume."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from motley import extend
from motley.core.registry import Registry
from tests.cli.conftest import Motley

OURS = '''
import torch
from torch import nn
from motley.extend import (DATASETS, METHODS, MODELS, PARTITIONS, PROBLEMS, PROTOCOLS, Classification, Dataset, Part,
                           Partition, compose, model, part)
from motley.data.adapters import from_arrays
import numpy as np

@DATASETS.add()
def ours_data(n: int = 60):
    """Two clouds."""
    y = np.arange(n) % 2
    return from_arrays(np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32) + y[:, None], y)

@PARTITIONS.add(hidden=("dataset", "clients", "key"))
def ours_halves(dataset, clients, key):
    """In order."""
    return Partition.of(np.array_split(np.arange(len(dataset)), clients))

@PROBLEMS.add()
def ours_problem():
    """Classes."""
    return Classification()

@part("objective", example={"weight": 0.5}, neutral={"weight": 0.0})
def ours_part(weight: float = 0.1):
    """Small weights."""
    def penalty(c, me, batch, out):
        return me.dials["weight"] * out.logits.square().mean()
    return Part(penalty=penalty, dials={"weight": weight})

@PROTOCOLS.add(hidden=("fed",), punctual=True)
async def ours_protocol(fed):
    """Plain rounds."""
    async for rnd in fed.rounds():
        tasks = fed.dispatch(rnd, fed.select(rnd))
        fed.aggregate(rnd, await fed.gather(tasks))
'''
ASKED = (
    "run", "mine.toml", "data=ours_data", "partition=ours_halves", "problem=ours_problem", "method=fedavg+ours_part",
    "protocol=ours_protocol", "model=mlp(hidden=[4])", "clients=4", "cohort=2", "rounds=2",
)  # fmt: skip


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test imports is gone after it."""
    for registry in (found for found in vars(extend).values() if isinstance(found, Registry)):
        monkeypatch.setattr(registry, "entries", dict(registry.entries))
    modules, paths = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = paths
    for name in set(sys.modules) - modules:
        if name.startswith("ours"):
            del sys.modules[name]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "ours.py").write_text(OURS)
    (tmp_path / "mine.toml").write_text("seed = 1\n")
    return tmp_path


def test_a_module_of_ones_own_works_and_is_found_again_on_resume(motley: Motley, project: Path) -> None:
    done = motley("--import", "ours", *ASKED, "--json")
    assert done.code == 0, done.err
    saved = (Path(done.last["run"]) / "recipe.toml").read_text()
    assert 'imports = ["ours"]' in saved
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-m", "motley", "resume", str(project / done.last["run"]), "rounds=3", "--json"]
    again = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["rounds"] == 3


def test_a_recipe_may_import_what_lies_beside_it(
    motley: Motley, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "mine.toml").write_text('imports = ["ours"]\n')
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    done = motley("run", "../mine.toml", *ASKED[2:], "executor=pool(workers=2)", "--json")
    assert done.code == 0, done.err
    assert done.last["executor"] == "pool"


def test_a_file_is_named_by_its_path_and_parts_are_listed(motley: Motley, project: Path) -> None:
    listed = motley("--import", "ours.py", "list", "parts", "--json")
    assert "ours_part" in [row["name"] for row in listed.last]
    done = motley("--import", "ours.py", *ASKED, "--json")
    assert f'imports = ["{project.resolve() / "ours.py"}"]' in (Path(done.last["run"]) / "recipe.toml").read_text()


def test_a_later_command_is_still_found(motley: Motley, project: Path) -> None:
    assert motley("--import", "ours", "reproduce", "--help").code == 0
    assert motley("--import=ours", "privacy", "--help").code == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("theirs", "The module 'theirs' cannot be imported (ModuleNotFoundError: No module named 'theirs')"),
        ("theirs.py", "there is no file"),
        ("ours_broken", "ZeroDivisionError: division by zero"),
        ("json.py", "another module is called 'json' already"),
    ],
)
def test_what_cannot_be_imported_is_told_in_a_sentence(motley: Motley, project: Path, text: str, told: str) -> None:
    (project / "ours_broken.py").write_text("1 / 0\n")
    (project / "json.py").write_text("")
    end = motley("--import", text, "run", "digits")
    assert end.code == 2
    assert told in end.err
    assert end.err.count("\n") == 1


def test_a_run_whose_module_is_gone_says_what_to_do(motley: Motley, project: Path) -> None:
    done = motley("--import", "ours", *ASKED, "--json").last
    (project / "ours.py").unlink()
    command = [sys.executable, "-m", "motley", "resume", done["run"]]
    again = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "The module 'ours' cannot be imported" in again.stderr
    assert "call motley from the directory where it lies" in again.stderr
