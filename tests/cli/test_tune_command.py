"""``motley tune`` as a person and a machine see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from motley.commands.cli import app
from motley.core.errors import RecipeError

FIXED = ["partition=iid", "rounds=2", "clients=8", "cohort=3", "epochs=1", "split=by_clients(folds=4)", "executor=loop"]


def test_a_search_from_the_command_line(tmp_path: Path) -> None:
    command = ["tune", "digits", "lr=0.00001,0.1", *FIXED, "--folds", "2", "--seeds", "2", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False)
    told = json.loads(result.stdout.splitlines()[-1])
    assert told["chosen"] == {"lr": "0.1"}
    assert told["trials"] == 2
    folder = Path(told["search"])
    assert len(list((folder / "runs").iterdir())) == 8
    before = (folder / "table.json").stat().st_mtime_ns
    again = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "Chosen: lr=0.1" in again.stdout
    assert "| 1 | 0.1 |" in again.stdout
    assert (folder / "table.json").stat().st_mtime_ns > before  # the same directory, written again, nothing run
    assert list(tmp_path.iterdir()) == [folder]


def test_nothing_to_tune(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="nothing to tune"):
        CliRunner().invoke(app, ["tune", "digits", *FIXED, "--out", str(tmp_path)], catch_exceptions=False)
