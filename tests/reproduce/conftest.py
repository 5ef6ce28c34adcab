"""A tiny reproduction as a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reproduce.finished_runs import TINY


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return str(path)
