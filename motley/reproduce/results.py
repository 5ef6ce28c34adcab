"""Finished runs as small JSON files under ``results/``; tables are rebuilt from these alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from motley.core.errors import StateError
from motley.core.files import write_text
from motley.runtime.launch import Result
from motley.runtime.recipe import Recipe

_DROPPED = ("run", "model_sha256")


@dataclass(frozen=True)
class Finished:
    """One run: what was asked, what came out, and where it was made."""

    reproduction: str
    cell: str
    identity: str
    seed: int
    quick: bool
    recipe: dict[str, Any]
    summary: dict[str, Any]
    rounds: list[int]
    accuracy: list[float]  # of the evaluated rounds
    extra: dict[str, list[float | None]] = field(default_factory=dict)  # per-round numbers of the diagnostics
    times: list[float] = field(default_factory=list)  # virtual seconds at the end of the evaluated rounds
    device: str = ""
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def diagnostics(self) -> set[str]:
        return set(self.recipe.get("diagnostics", []))

    @property
    def draw(self) -> tuple[int, int]:
        """Seed and fold: runs of the same two share their data and their fleet."""
        return self.seed, self.recipe.get("fold", 0)

    @property
    def file_name(self) -> str:
        return f"{self.identity}-s{self.seed}.json"


def compact(
    reproduction: str, cell: str, quick: bool, result: Result, device: str, environment: dict[str, Any]
) -> Finished:
    """The small record of a result."""
    measured = [record for record in result.records if record.accuracy is not None]
    names = {name for record in result.records for name, value in record.extra.items() if isinstance(value, float)}
    extra = {
        name: [_short(record.extra[name]) for record in result.records if name in record.extra]
        for name in sorted(names)
    }
    return Finished(
        reproduction=reproduction,
        cell=cell,
        identity=result.recipe.identity,
        seed=result.recipe.seed,
        quick=quick,
        recipe=result.recipe.model_dump(exclude_defaults=True),
        summary={key: value for key, value in result.summary.items() if key not in _DROPPED},
        rounds=[record.round for record in measured],
        accuracy=[round(record.accuracy or 0.0, 6) for record in measured],
        extra=extra,
        times=[float(f"{record.virtual_time:.8g}") for record in measured],
        device=device,
        environment=environment,
    )


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


class Results:
    """The folder ``results/``: ``<reproduction>/runs/*.json``; small versions apart in ``…/quick/runs``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[str, Finished] = {}
        for path in sorted(folder.glob("*/runs/*.json")) + sorted(folder.glob("*/quick/runs/*.json")):
            self._remember(_read(path))

    def _remember(self, run: Finished) -> None:
        old = self._found.get(run.identity)
        if old is None or old.diagnostics <= run.diagnostics:
            self._found[run.identity] = run

    def place(self, reproduction: str, quick: bool) -> Path:
        """Where tables and pictures of a reproduction lie."""
        return self.folder / reproduction / "quick" if quick else self.folder / reproduction

    def find(self, recipe: Recipe) -> Finished | None:
        """The finished run of a recipe, by whichever reproduction asked for it first."""
        found = self._found.get(recipe.identity)
        return found if found is not None and found.diagnostics >= set(recipe.diagnostics) else None

    def add(self, run: Finished) -> Path:
        """Keeps a finished run."""
        path = self.place(run.reproduction, run.quick) / "runs" / run.file_name
        write_text(path, _by_key(asdict(run)))
        self._remember(run)
        return path

    def take_in(self, path: Path) -> int:
        """Adds the runs of an exported file that are not here yet; says how many."""
        new = 0
        for run in imported(path):
            old = self._found.get(run.identity)
            if old is None or not old.diagnostics >= run.diagnostics:
                self.add(run)
                new += 1
        return new


def _read(path: Path) -> Finished:
    try:
        return Finished(**json.loads(path.read_text()))
    except (json.JSONDecodeError, TypeError):
        raise StateError(f"{path} is not a finished run; delete it, or restore it from version control.") from None


def export_file(target: Path) -> Path:
    """The file an export goes to: the given one, or ``runs.jsonl`` in the given folder."""
    return target if target.suffix else target / "runs.jsonl"


def exported(target: Path, runs: Iterable[Finished]) -> None:
    """Writes runs to one file, one per line."""
    write_text(export_file(target), "".join(json.dumps(asdict(run)) + "\n" for run in runs))


def imported(target: Path) -> Iterator[Finished]:
    """The runs of an exported file; a last line that was cut off is left out."""
    path = export_file(target)
    if not path.is_file():
        raise StateError(f"There are no exported runs at {path}.")
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            yield Finished(**json.loads(line))
        except (json.JSONDecodeError, TypeError):
            if number == len(lines):
                return
            raise StateError(f"Line {number} of {path} is not an exported run.") from None


def _by_key(content: dict[str, Any]) -> str:
    """JSON with a line per key: curves of hundreds of rounds take a line each."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()) + "\n}\n"
