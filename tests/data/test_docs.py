"""The snippets of the data page run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from motley.data.datasets import DATASETS
from motley.data.partitioning import PARTITIONS
from motley.data.skew import SKEWS

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_snippets(capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, object] = {}
    try:
        for snippet in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(compile(snippet, str(PAGE), "exec"), space)
    finally:
        DATASETS.entries.pop("mine", None)
        PARTITIONS.entries.pop("halves", None)
    printed = capsys.readouterr().out
    said = "50 clients with at least 100 samples each need 5000 samples, but there are 1438; lower min_size"
    assert said in printed
    assert said in PAGE.read_text()
    assert "c_score" in printed


def test_everything_is_on_the_page() -> None:
    text = PAGE.read_text()
    for registry in (DATASETS, PARTITIONS, SKEWS):
        for entry in registry:
            assert f"`{entry.name}" in text, entry.name
