"""What a run leaves behind: one JSON line per round, the resolved recipe, facts about the machine, a summary."""

from __future__ import annotations

import json
import math
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import motley
from motley.core.errors import StateError


@dataclass
class Record:
    """One round."""

    round: int
    virtual_time: float
    wall_time: float
    participants: int
    arrived: int
    lost: int
    late: int
    bytes_up: int
    bytes_down: int
    train_loss: float | None = None
    scores: dict[str, float] = field(default_factory=dict)  # on the test samples, the headline first; empty: not judged
    staleness: list[int] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def judged(self) -> bool:
        """Whether this round was evaluated."""
        return bool(self.scores)

    @property
    def accuracy(self) -> float | None:
        return self.scores.get("accuracy")

    @property
    def loss(self) -> float | None:
        return self.scores.get("loss")

    def score(self, name: str) -> float | None:
        """A score, or a number that a diagnostic or the validation samples gave."""
        value = self.scores.get(name, self.extra.get(name))
        return float(value) if isinstance(value, int | float) else None

    def to_line(self) -> str:
        """One line of JSON, scores beside the rest; what is empty or not finite is left out."""
        content = asdict(self)
        flat: dict[str, Any] = {}
        for name, value in content.items():
            flat |= value if name == "scores" else {name: value}
        return json.dumps({key: value for key, value in flat.items() if _tells(value)})

    @classmethod
    def from_line(cls, line: str) -> Record:
        content = json.loads(line)
        known = {one.name for one in fields(cls)}
        scores = {key: content.pop(key) for key in list(content) if key not in known}
        return cls(**content, scores=scores)


def _tells(value: Any) -> bool:
    return value not in (None, [], {}) and (not isinstance(value, float) or math.isfinite(value))


def validated(records: Iterable[Record], score: str, better: int) -> dict[str, float] | None:
    """The round with the best validation score (+1: the largest), that score, and the test score of the same round."""
    name = f"validation_{score}"
    found = [record for record in records if math.isfinite(record.extra.get(name, math.nan))]
    if not found:
        return None
    best = max(found, key=lambda record: (better * record.extra[name], -record.round))
    test = best.score(score)
    return {"round": best.round, "validation": best.extra[name], "test": math.nan if test is None else test}


def validations(records: Sequence[Record], goals: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """By score: the round that validation data choose, and what it gives."""
    return {name: found for name, better in goals.items() if (found := validated(records, name, better))}


def read_records(path: Path) -> list[Record]:
    """The records of a run; a last line that was cut off by a crash is left out."""
    if not path.is_file():
        raise StateError(f"There are no records at {path}; is it the directory of a run?")
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(Record.from_line(line))
        except (json.JSONDecodeError, TypeError):
            break
    return records


def environment() -> dict[str, Any]:
    """Where and with what a run was made."""
    packages = {}
    for name in ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "pydantic"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "motley": motley.__version__,
        "commit": source_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": packages,
        "command": _command(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _command() -> str:
    """What was typed, whichever way the program was started."""
    name = Path(sys.argv[0]).name
    return shlex.join(["motley" if name == "__main__.py" else name, *sys.argv[1:]])


def source_version(folder: Path = Path(__file__).parents[1]) -> str | None:
    """The commit that the files of a folder belong to, with a ``+`` where they differ from it."""
    commit = _git(folder, "rev-parse", "--short", "HEAD")
    return commit + "+" if commit and _git(folder, "status", "--porcelain", "--", ".") else commit


def _git(folder: Path, *command: str) -> str | None:
    try:
        found = subprocess.run(
            ["git", *command], cwd=folder, capture_output=True, text=True, timeout=5, check=False
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()
