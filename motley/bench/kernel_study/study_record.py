"""What was measured, kept as it comes: one line of JSON per unit, so that a study that was broken off goes on."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SOURCES = (
    "*_cases.py", "study_case.py", "study_ways.py", "study_worker.py", "numpy_*.py", "torch_*.py", "*_kernels.py",
    "dace_building.py", "../../server/row_*.py", "../../server/order_statistics.py", "../../server/largest_entries.py",
    "../../server/sorting_network.py",
)  # fmt: skip


def median_and_quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the quarters of the values below and above it."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


@dataclass(frozen=True)
class Unit:
    """What is measured in one go, by all ways in turn."""

    kernel: str
    size: str
    threads: int
    device: str

    @property
    def key(self) -> str:
        return f"{self.kernel}/{self.size}/{self.threads}/{self.device}"


@dataclass
class Outcome:
    """One way of computing a unit. status: right, wrong (not timed), failed, or absent."""

    way: str
    status: str
    note: str = ""
    error: float | None = None
    compile_seconds: float | None = None
    calls: int = 0
    samples: list[float] = field(default_factory=list)  # seconds per call, one of each pass


@dataclass
class Measured:
    """A unit with what became of every way."""

    unit: Unit
    outcomes: list[Outcome]
    busy: float  # share of the cores that others used just before
    passes: int

    def find(self, way: str) -> Outcome | None:
        return next((one for one in self.outcomes if one.way == way and one.status == "right"), None)


def code_version() -> str:
    """Changes when kernels do: what was measured with others is measured again."""
    here = Path(__file__).parent
    files = sorted({path for pattern in SOURCES for path in here.glob(pattern)})
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


class StudyRecord:
    """The file ``measured.jsonl`` of a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "measured.jsonl"
        self.code = code_version()
        self.units: dict[str, Measured] = {}
        self.extras: dict[str, Any] = {}  # what is no unit: traps, the two processes, facts
        if self.path.is_file():
            for line in self.path.read_text().splitlines():
                self._read(line)

    def _read(self, line: str) -> None:
        try:
            content = json.loads(line)
        except json.JSONDecodeError:  # cut off
            return
        if content.pop("code") != self.code:
            return
        if "extra" in content:
            self.extras[content["extra"]] = content["value"]
            return
        unit = Unit(**content.pop("unit"))
        outcomes = [Outcome(**one) for one in content.pop("outcomes")]
        self.units[unit.key] = Measured(unit, outcomes, **content)

    def has(self, unit: Unit, ways: Sequence[str], passes: int) -> bool:
        """Whether a unit was measured by all these ways, at least as thoroughly."""
        found = self.units.get(unit.key)
        return found is not None and found.passes >= passes and {one.way for one in found.outcomes} >= set(ways)

    def add(self, measured: Measured) -> None:
        self.units[measured.unit.key] = measured
        self._append(asdict(measured))

    def add_extra(self, name: str, value: Any) -> None:
        self.extras[name] = value
        self._append({"extra": name, "value": value})

    def _append(self, content: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"code": self.code, **content}) + "\n")
