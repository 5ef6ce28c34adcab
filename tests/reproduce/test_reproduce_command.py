"""``motley reproduce``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from motley.commands.cli import app
from motley.core.errors import InputError
from motley.reproduce import reproduction as spec


def call(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["reproduce", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_the_list_for_machines(tmp_path: Path) -> None:
    rows = json.loads(call("--json", "--results", str(tmp_path)).stdout.splitlines()[-1])
    assert {row["name"] for row in rows} == set(spec.names())
    assert all(row["status"] == "none" and row["paper"] for row in rows)


def test_the_list_counts_a_run_per_seed_and_fold(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reproduce", "--json", "--results", str(tmp_path)], catch_exceptions=False)
    rows = {row["name"]: row for row in json.loads(result.stdout.splitlines()[-1])}
    assert rows["radfed-table-3"]["runs"] == 100 * 5
    assert all(row["missing_runs"] == row["runs"] for row in rows.values())  # nothing was run yet


def test_quick_says_so_and_show_only_reads(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = call(tiny, "--quick").stdout
    assert "Small version" in text
    place = tmp_path / "results" / "papers" / "tiny" / "quick"
    assert {path.name for path in place.iterdir()} == {"runs.jsonl", "README.md", "table.json", "table.png"}
    shown = json.loads(call(tiny, "--quick", "--show", "--json").stdout.splitlines()[-1])
    assert shown["status"] == "full"
    assert {"row", "metric", "paper", "measured", "low", "high", "seeds", "device"} <= set(shown["rows"][0])
    assert [claim["text"] for claim in shown["claims"]] == ["B beats A"]
    assert {"text", "holds"} <= set(shown["claims"][0])
    full = json.loads(call(tiny, "--show", "--json").stdout.splitlines()[-1])
    assert full["status"] == "none"
    assert full["rows"][0]["measured"] is None
    assert full["claims"][0]["holds"] is None


def test_wrong_seeds_are_a_sentence(tiny: str) -> None:
    with pytest.raises(InputError, match="whole numbers"):
        CliRunner().invoke(app, ["reproduce", tiny, "--seeds", "a,b"], catch_exceptions=False)
