"""Finished runs, a line of JSON each, in ``results/papers/NAME/runs.jsonl``; tables are rebuilt from these alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from motley.core.errors import StateError
from motley.core.files import append_line, write_text
from motley.runtime.launch import Result
from motley.runtime.recipe import Recipe
from motley.runtime.records import Record

RUNS = "runs.jsonl"
ROOM = "papers"  # the room of reproductions in results/
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

    def to_line(self) -> str:
        return json.dumps(asdict(self))


def compact(
    reproduction: str, cell: str, quick: bool, result: Result, device: str, environment: dict[str, Any]
) -> Finished:
    """The small record of a result."""
    measured = [record for record in result.records if record.accuracy is not None]
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
        extra=_numbers(result.records),
        times=[float(f"{record.virtual_time:.8g}") for record in measured],
        device=device,
        environment=environment,
    )


def _numbers(records: Sequence[Record]) -> dict[str, list[float | None]]:
    """What diagnostics measured, by name, a number for each round that has one."""
    names = {name for record in records for name, value in record.extra.items() if isinstance(value, float)}
    return {name: [_short(r.extra[name]) for r in records if name in r.extra] for name in sorted(names)}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


class Results:
    """The folder ``results/``: a reproduction's runs in ``papers/NAME/runs.jsonl``, small versions in ``…/quick``.

    A run is a line that is added under a lock and flushed, so that several processes may write and none loses another's
    run when it is killed. Of two lines for the same recipe the later counts, unless it measured less.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[str, Finished] = {}
        if any(folder.glob("*/runs/*.json")):
            raise StateError(
                f"{folder} keeps a file per run, as earlier versions did; move it elsewhere and add its runs with "
                "motley reproduce --import FOLDER."
            )
        for pattern in ("*/runs.jsonl", "*/quick/runs.jsonl"):
            for path in sorted((folder / ROOM).glob(pattern)):
                for run in read_runs(path):
                    self._remember(run)

    def _remember(self, run: Finished) -> None:
        old = self._found.get(run.identity)
        if old is None or old.diagnostics <= run.diagnostics:
            self._found[run.identity] = run

    def place(self, reproduction: str, quick: bool) -> Path:
        """Where table and picture of a reproduction lie, and its runs."""
        own = self.folder / ROOM / reproduction
        return own / "quick" if quick else own

    def find(self, recipe: Recipe) -> Finished | None:
        """The finished run of a recipe, by whichever reproduction asked for it first."""
        found = self._found.get(recipe.identity)
        return found if found is not None and found.diagnostics >= set(recipe.diagnostics) else None

    def add(self, run: Finished) -> None:
        """Keeps a finished run."""
        append_line(self.place(run.reproduction, run.quick) / RUNS, run.to_line())
        self._remember(run)

    def take_in(self, path: Path) -> int:
        """Adds the runs that were exported, or kept by an earlier version, and are not here yet; says how many."""
        new = 0
        for run in imported(path):
            old = self._found.get(run.identity)
            if old is None or not old.diagnostics >= run.diagnostics:
                self.add(run)
                new += 1
        return new


def read_runs(path: Path) -> Iterator[Finished]:
    """The runs of a file; a last line that was cut off is left out."""
    lines = path.read_text().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            yield Finished(**json.loads(line))
        except (json.JSONDecodeError, TypeError):
            if not line.endswith("\n"):
                return
            raise StateError(
                f"Line {number} of {path} is not a finished run; delete it, or restore it from version control."
            ) from None


def export_file(target: Path) -> Path:
    """The file an export goes to: the given one, or ``runs.jsonl`` in the given folder."""
    return target if target.suffix else target / RUNS


def exported(target: Path, runs: Iterable[Finished]) -> None:
    """Writes runs to one file, one per line."""
    write_text(export_file(target), "".join(run.to_line() + "\n" for run in runs))


def imported(target: Path) -> Iterator[Finished]:
    """The runs of an exported file, or of a folder in which an earlier version kept a file per run."""
    path = export_file(target)
    single = sorted(target.glob("**/runs/*.json"))
    if not path.is_file() and not single:
        raise StateError(f"There are no exported runs at {path}.")
    if path.is_file():
        yield from read_runs(path)
    for one in single:
        yield Finished(**json.loads(one.read_text()))
