"""The line that tells how far a run in Python has come."""

from __future__ import annotations

import io
import sys
import types
from itertools import pairwise

import pytest

import motley
from motley.core.errors import InputError
from motley.runtime import progress_line


@pytest.fixture
def looked_at_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_line, "SECONDS", 0.0)


def test_the_line_is_rewritten_in_place(looked_at_all_the_time: None, capsys: pytest.CaptureFixture[str]) -> None:
    result = motley.run("digits", rounds=3, progress=True)
    shown = capsys.readouterr().err
    assert shown.endswith("\n")
    lines = shown.strip("\n").split("\r")[1:]
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3", "3/3"]
    assert f"accuracy {100 * result.accuracy:.1f} %" in lines[-1]
    assert "left" in lines[0]
    assert "left" not in lines[-1]
    assert all(len(line) >= len(before.rstrip()) for before, line in pairwise(lines))


def test_auto_is_silent_where_nobody_watches(
    looked_at_all_the_time: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    motley.run("digits", rounds=1, progress="auto")
    motley.run("digits", rounds=1)
    assert capsys.readouterr().err == ""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    motley.run("digits", rounds=1, progress="auto")
    assert "digits 1/1" in terminal.getvalue()


def test_a_notebook_shows_it_where_cells_print(
    looked_at_all_the_time: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    motley.run("digits", rounds=1, progress="auto")
    out, err = capsys.readouterr()
    assert "digits 1/1" in out
    assert err == ""


def test_another_value_is_refused() -> None:
    with pytest.raises(InputError, match="progress is 'yes'"):
        motley.run("digits", rounds=1, progress="yes")  # type: ignore[arg-type]
