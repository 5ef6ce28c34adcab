"""Listeners that cannot be told anything are refused before a step is trained; folders that cannot be made are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import motley
from motley.runtime.listeners import Told, as_listener


def takes_none() -> None: ...


def takes_three(run: Any, record: Any, more: Any) -> None: ...


@pytest.mark.parametrize(
    ("listener", "words"),
    [
        (3, "not 3"),
        (takes_none, r"takes_none takes \(\)"),
        (takes_three, r"takes_three takes \(run, record, more\)"),
        (motley.Listener, r"give an object of it, Listener\(\)"),
    ],
)
def test_what_cannot_listen_is_refused_before_a_step(listener: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(motley.InputError, match=words):
        motley.run("digits", rounds=1, listeners=[listener], folder=tmp_path / "run")
    assert not list(tmp_path.rglob("rounds.jsonl"))


def test_functions_of_one_or_two_things() -> None:
    def kept(record: Any, run: Any = None) -> None: ...

    for function, takes_run in ((kept, False), (lambda *given: None, False), (lambda run, record: None, True)):
        told = as_listener(function)
        assert isinstance(told, Told)
        assert told.takes_run is takes_run


def test_a_folder_that_cannot_be_made_is_told() -> None:
    with pytest.raises(motley.InputError, match=r"cannot be written: No such file or directory. Nothing was saved"):
        motley.run("digits", rounds=1, folder="/proc/motley/run")


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(motley.InputError, match=r"run cannot be written: File exists\. Nothing was saved"):
        motley.run("digits", rounds=1, folder=tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"


def test_a_file_that_a_listener_misses_is_its_own_affair(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        motley.run("digits", rounds=1, folder=tmp_path, listeners=[lambda record: Path("/nowhere/at/all").read_text()])
