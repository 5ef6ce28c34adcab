"""What a run leaves behind: one JSON line per round, the resolved recipe, facts about the machine, a summary."""

from __future__ import annotations

import json
import math
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
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
    accuracy: float | None = None
    loss: float | None = None
    macro_f1: float | None = None
    auc: float | None = None
    staleness: list[int] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def to_line(self) -> str:
        content = {key: value for key, value in asdict(self).items() if value not in (None, [], {})}
        finite = {key: value for key, value in content.items() if not isinstance(value, float) or math.isfinite(value)}
        return json.dumps(finite)


GOALS = {"accuracy": 1, "macro_f1": 1, "weighted_f1": 1, "auc": 1, "loss": -1}
"""Scores that validation data give, and whether more is better."""


def validated(records: Iterable[Record], goal: str) -> dict[str, float] | None:
    """The round with the best validation score, that score, and the test score of the same round."""
    name = f"validation_{goal}"
    found = [record for record in records if math.isfinite(record.extra.get(name, math.nan))]
    if not found:
        return None
    best = max(found, key=lambda record: (GOALS[goal] * record.extra[name], -record.round))
    test = best.extra[goal] if goal in best.extra else getattr(best, goal)
    return {"round": best.round, "validation": best.extra[name], "test": test}


def validations(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """By score: the round that validation data choose, and what it gives."""
    return {goal: found for goal in GOALS if (found := validated(records, goal))}


def read_records(path: Path) -> list[Record]:
    """The records of a run; a last line that was cut off by a crash is left out."""
    if not path.is_file():
        raise StateError(f"There are no records at {path}; is it the directory of a run?")
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(Record(**json.loads(line)))
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
