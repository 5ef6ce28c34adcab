"""Runs read back from their directories, grouped by recipe so that seeds stand together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from motley.core.errors import StateError
from motley.run.recipe import WITHOUT_EFFECT, Recipe
from motley.run.records import Record, read_records
from motley.run.runner import open_run, read_summary


@dataclass(frozen=True)
class RunData:
    """One run as its directory tells it."""

    folder: Path
    recipe: Recipe
    records: list[Record]
    summary: dict[str, Any] | None  # None: not finished

    @property
    def measured(self) -> list[Record]:
        """The rounds that were evaluated."""
        return [record for record in self.records if record.accuracy is not None]

    @property
    def accuracies(self) -> list[float]:
        return [record.accuracy for record in self.records if record.accuracy is not None]


def read_run(folder: str | Path) -> RunData:
    """A run's recipe, records and summary; unfinished runs are read as far as they went."""
    place = Path(folder)
    recipe = open_run(place)
    records = read_records(place / "rounds.jsonl")
    run = RunData(place, recipe, records, read_summary(place))
    if not run.measured:
        raise StateError(f"The run {folder} has no evaluated round yet; wait, or continue it with 'motley resume'.")
    return run


@dataclass(frozen=True)
class Group:
    """Runs of one recipe that differ in their seeds alone."""

    label: str
    runs: list[RunData]

    @property
    def recipe(self) -> Recipe:
        return self.runs[0].recipe


def group(runs: Sequence[RunData]) -> list[Group]:
    """Runs by recipe, seeds together, in the order given; each labelled by what sets it apart."""
    found: dict[str, list[RunData]] = {}
    for run in runs:
        found.setdefault(run.recipe.model_copy(update={"seed": 0}).identity, []).append(run)
    labels = _labels([members[0].recipe for members in found.values()])
    return [Group(label, members) for label, members in zip(labels, found.values(), strict=True)]


def _labels(recipes: list[Recipe]) -> list[str]:
    """What differs between recipes: the method alone where that is all, else ``key=value``."""
    contents = [_flat(recipe) for recipe in recipes]
    keys = [key for key in contents[0] if any(c.get(key) != contents[0][key] for c in contents)]
    keys += [key for c in contents[1:] for key in c if key not in contents[0] and key not in keys]
    if not keys:
        return [f"{recipe.name}, {recipe.method}" for recipe in recipes]
    names = []
    for content in contents:
        pieces = [content[key] if key == "method" else f"{key}={content[key]}" for key in keys if key in content]
        names.append(", ".join(str(piece) for piece in pieces))
    return names


def _flat(recipe: Recipe) -> dict[str, Any]:
    content = recipe.model_dump(exclude={*WITHOUT_EFFECT, "seed", "params", "options"})
    for part, arguments in recipe.params.items():
        content.update({f"{part}.{key}": value for key, value in arguments.items()})
    return {**content, **recipe.options}


def mean_and_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half the width of its 95 % confidence interval (Student's t); None for a single value."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return mean, None
    from scipy.special import stdtrit

    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return mean, float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n)
