"""The pages on statistical heterogeneity and on reproductions name what there is, and their example works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from motley.core.part import PARTS
from motley.methods import METHODS, make_method
from motley.reproduce import reproduction as spec
from motley.reproduce.metrics import METRICS
from motley.runtime.diagnostics import DIAGNOSTICS

DOCS = Path(__file__).parents[2] / "docs"
STATISTICAL = (DOCS / "statistical.md").read_text()
REPRODUCE = (DOCS / "reproduce.md").read_text()


def test_methods_and_parts_on_the_page_exist() -> None:
    table = STATISTICAL.split("## Methods")[1].split("## Equations")[0]
    for name, parts in re.findall(r"^\| `(\w+)[^|]*\| ([^|]*)\|", table, flags=re.M):
        assert name in METHODS
        for part in re.findall(r"`(\w+)", parts):
            assert part in PARTS or part in METHODS


def test_composed_of_says_the_truth() -> None:
    assert [p.name for p in make_method("fedprox_limited").parts] == [
        "proximal",
        "partial_work",
        "less_work_when_limited",
    ]
    assert [p.name for p in make_method("ama_fes").parts] == [
        "mix_with_previous",
        "classifier_only_when_limited",
        "whole_model_mean",
    ]


def test_diagnostics_on_the_page_exist_and_every_metric_is_named() -> None:
    named = re.findall(r"^\| `(\w+)` \|", STATISTICAL.split("## Diagnostics")[1], flags=re.M)
    assert len(named) == 5
    assert all(name in DIAGNOSTICS for name in named)
    assert all(f"`{entry.name}" in REPRODUCE for entry in METRICS)


def test_reproductions_on_the_page_exist_with_as_many_runs() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| ([\d x]+) \|$", REPRODUCE, flags=re.M)
    assert len(rows) >= 12
    for name, count in rows:
        made = spec.read(name)
        cells, _, seeds = count.partition(" x ")
        assert (len(made.cells()), len(made.draws())) == (int(cells), int(seeds or 1))


def test_the_file_on_the_page_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", REPRODUCE, flags=re.S)
    path = tmp_path / "mine.toml"
    path.write_text(example)
    made = spec.read(str(path))
    assert len(made.cells()) == 4
    assert made.recipe_of(made.cells(True)[0], spec.Draw(0), True).rounds == 3
