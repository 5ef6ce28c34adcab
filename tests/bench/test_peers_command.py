"""`motley bench peers`."""

from __future__ import annotations

from pathlib import Path

import pytest

from motley.bench import cases
from tests.bench.test_peers import COLUMNS, RATIOS, TINY
from tests.cli.conftest import Motley, motley

__all__ = ["motley"]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cases.CASES, "tiny", TINY)


def test_json_and_png(motley: Motley, tmp_path: Path) -> None:
    ended = motley(
        "bench", "peers", "--cases", "tiny", "--rounds", 1, "--executors", "loop", "--against", "", "--png", "a.png",
        "--json",
    )  # fmt: skip
    assert ended.code == 0
    assert [row["framework"] for row in ended.last] == ["bare loop", "motley loop"]
    assert list(ended.last[0]) == [*COLUMNS, *RATIOS, "machine", "commit", "torch"]
    assert ended.last[0]["machine"]
    assert ended.last[0]["torch"]
    assert ended.last[0]["precision"] == "tf32"
    assert (tmp_path / "a.png").is_file()


def test_table_names_what_is_not_installed(motley: Motley, monkeypatch: pytest.MonkeyPatch) -> None:
    from motley.bench import peers_pfl

    monkeypatch.setattr(peers_pfl, "find_spec", lambda name: None)
    monkeypatch.setenv("COLUMNS", "200")
    ended = motley("bench", "peers", "--cases", "tiny", "--executors", "loop", "--against", "pfl", "--check")
    assert ended.code == 0
    assert "not installed" in ended.out
    assert "pfl x4" in ended.out


def test_unknown_case(motley: Motley) -> None:
    ended = motley("bench", "peers", "--cases", "tidy")
    assert ended.code != 0
    assert "tiny" in ended.err
