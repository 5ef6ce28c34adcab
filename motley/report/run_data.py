"""Runs read back from their directories, grouped by recipe so that seeds stand together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from motley.client.problems import PROBLEMS, make_problem
from motley.core.errors import StateError
from motley.runtime.launch import open_run, read_summary
from motley.runtime.recipe import WITHOUT_EFFECT, Recipe
from motley.runtime.records import Record, read_records


@dataclass(frozen=True)
class RunData:
    """One run as its directory tells it."""

    folder: Path
    recipe: Recipe
    records: list[Record]
    summary: dict[str, Any] | None  # None: not finished

    @property
    def headline(self) -> str:
        """The score that is told first; empty where no round was evaluated."""
        return next((name for record in self.records for name in record.scores), "")

    @property
    def measured(self) -> list[Record]:
        """The rounds that were evaluated."""
        name = self.headline
        return [record for record in self.records if name in record.scores]

    @property
    def history(self) -> list[float]:
        """The headline score of the rounds that were evaluated."""
        name = self.headline
        return [record.scores[name] for record in self.measured]

    @property
    def best(self) -> float:
        """The best of the headline, as the run itself told it at its end."""
        found = (self.summary or {}).get(f"best_{self.headline}")
        if found is not None:
            return float(found)
        return max(self.history) if self.better > 0 else min(self.history)

    @property
    def better(self) -> int:
        """+1 where more of the headline is better, -1 where less is; of a problem of one's own, its best tells."""
        name = self.recipe.problem
        if name.split("(")[0] in PROBLEMS:
            return make_problem(name).better(self.headline)
        best = (self.summary or {}).get(f"best_{self.headline}")
        return -1 if best is not None and min(self.history) == best != max(self.history) else 1

    def traffic(self, number: int) -> int:
        """Bytes up and down until the end of a round."""
        return sum(record.bytes_up + record.bytes_down for record in self.records if record.round <= number)


def read_run(folder: str | Path) -> RunData:
    """A run's recipe, records and summary; unfinished runs are read as far as they went."""
    place = Path(folder)
    recipe = open_run(place)
    if recipe.phases:
        inside = ", ".join(str(one) for one in sorted(place.iterdir()) if (one / "rounds.jsonl").is_file())
        raise StateError(f"The run {folder} has phases; report some of them: {inside or 'none has begun'}.")
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
    def headline(self) -> str:
        return self.runs[0].headline

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
    keys = _differing(contents)
    if not keys:
        return [f"{recipe.name}, {recipe.method}" for recipe in recipes]
    return [", ".join(_told(key, content[key]) for key in keys if key in content) for content in contents]


def _differing(contents: list[dict[str, Any]]) -> list[str]:
    """Keys whose values are not the same in all, in their order."""
    keys = dict.fromkeys(key for content in contents for key in content)
    absent = object()
    return [key for key in keys if any(one.get(key, absent) != contents[0].get(key, absent) for one in contents)]


def _told(key: str, value: Any) -> str:
    return str(value) if key == "method" else f"{key}={value}"


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
