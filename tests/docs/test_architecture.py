"""The page on architecture is the code: the path of a round, and the rooms."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import motley
from motley.runtime.experiment import prepare
from motley.runtime.launch import Run
from motley.runtime.listeners import Listener
from motley.runtime.recipe import load
from motley.runtime.records import Record
from tests.test_layers import LAYERS

PACKAGE = Path(motley.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "architecture.md").read_text()
STATIONS = re.findall(r"^ ?\d+  (\S+\.py) +(\w+) ", PAGE, flags=re.M)


class Watch(Listener):
    """Notes which functions of the package the second round calls, in the order of their first calls."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str], None] = {}
        self.before: Any = None

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            self.calls.setdefault((path.relative_to(PACKAGE).as_posix(), frame.f_code.co_name))

    def round_ended(self, run: Run, record: Record) -> None:
        if record.round == 1:
            self.before = sys.getprofile()
            sys.setprofile(self._note)
        elif record.round == 2:
            sys.setprofile(self.before)


def test_a_round_passes_these_functions_in_this_order() -> None:
    numbers = re.findall(r"^ ?(\d+)  \S+\.py", PAGE, flags=re.M)
    assert numbers == [str(number) for number in range(1, len(STATIONS) + 1)]
    watch = Watch()
    Run(prepare(load("digits", {"method": "fedavg", "rounds": 3, "executor": "loop"})), None, [watch]).go()
    assert [one for one in watch.calls if one in STATIONS] == STATIONS


def test_the_drawing_has_the_same_stations() -> None:
    drawn = PAGE.split("```mermaid")[1].split("```")[0]
    boxes = re.findall(r'\b(s\d+)\["(\d+) (\w+\.py)"\]', drawn)
    assert [(number, file) for _, number, file in boxes] == [
        (str(number), Path(file).name) for number, (file, _) in enumerate(STATIONS, 1)
    ]
    assert {box for box, _, _ in boxes} == set(re.findall(r"\bs\d+\b", drawn))


def test_the_path_never_goes_back_to_a_file() -> None:
    files = [file for file, _ in STATIONS]
    assert len(files) > 15
    assert len(set(files)) == len(files)


def test_files_and_rooms_that_are_named_exist() -> None:
    for name in re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE):
        assert (PACKAGE / name).is_file(), name
    table = PAGE.split("## The rooms of the house")[1].split("## ")[0]
    rows = [set(re.findall(r"`(\w+)`", line.split("|")[1])) for line in table.splitlines() if line.startswith("| `")]
    assert rows == [names - {"__main__"} for names in LAYERS]
