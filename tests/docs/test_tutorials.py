"""The tutorials are notebooks whose stored outputs are what their cells give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from motley import extend
from motley.core.registry import Registry
from tests.docs.notebooks import TUTORIALS, code_cells, outputs_of, read

NUMBER = re.compile(r"-?\d+(\.\d+)?")


def plain(output: dict[str, Any]) -> str:
    """An output without what may differ from machine to machine: numbers, and the pixels of pictures."""
    return NUMBER.sub("#", "".join(output["text"])) if "text" in output else "picture"


def test_there_are_two() -> None:
    assert [path.stem for path in TUTORIALS] == ["first_run", "write_a_part"]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_gives_what_it_shows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpl.use("Agg")
    for registry in (found for found in vars(extend).values() if isinstance(found, Registry)):
        monkeypatch.setattr(registry, "entries", dict(registry.entries))
    stored = [[plain(one) for one in cell["outputs"]] for cell in code_cells(read(path))]
    given = [[plain(one) for one in outputs] for outputs in outputs_of(path)]
    assert given == stored, "run: python -m tests.docs.notebooks"
    assert any("picture" in outputs for outputs in stored)


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_is_a_small_notebook_as_jupyter_reads_it(path: Path) -> None:
    notebook = read(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert notebook["cells"][0]["source"][0].startswith("# ")
    counts = [cell["execution_count"] for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    assert path.stat().st_size < 100_000
