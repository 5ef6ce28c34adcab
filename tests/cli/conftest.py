"""A way to call the command in this process, in an empty directory."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from motley.commands.cli import main


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> Any:
        """The JSON on the last line."""
        return json.loads(self.out.rstrip("\n").split("\n")[-1])


Motley = Callable[..., Ended]


@pytest.fixture
def motley(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Ended]]:
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["motley", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return Ended(int(end.value.code or 0), out, err)

    yield call
    signal.signal(signal.SIGTERM, before)
