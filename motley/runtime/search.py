"""A small search over recipe keys, scored on validation data: every trial is a run, so an interrupted search goes on.

    search = tune("digits", {"lr": [0.1, 0.01]}, folder="tuned", split="by_samples(fraction=0.2)")
    search.chosen  # {'lr': 0.01}

The folder holds one run per trial, fold and seed, the table (`table.md`, `table.json`), `chosen.toml`, the recipe with
the best values in place, and `environment.json`, which says by what command and on which machine it was made.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch

from motley.client.problems import make_problem
from motley.core.errors import InputError, MemoryFullError, RecipeError, StateError, TrainingError
from motley.core.files import write_json, write_text
from motley.core.keys import Key
from motley.core.problem import Problem
from motley.engine.executor import n_cores
from motley.runtime.experiment import prepare
from motley.runtime.launch import has_checkpoint, launch, read_summary, resume
from motley.runtime.parallel_runs import give_back, in_parallel
from motley.runtime.recipe import Recipe, load
from motley.runtime.records import Record, environment, read_records

MOST = 10_000  # trials of a grid
Settings = dict[str, Any]


@dataclass(frozen=True)
class Axis:
    """One recipe key and the values it may take: a list, or a range to draw from."""

    key: str
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Axis:
        """``lr=0.1,0.01`` (commas inside brackets do not count) or ``lr=0.001..0.1``."""
        key, equals, rest = text.partition("=")
        values = tuple(piece.strip() for piece in _split(rest))
        if not equals or not key.strip() or not all(values):
            raise RecipeError(f"'{text}' is not an axis; write key=a,b,c or key=low..high, for example lr=0.1,0.01.")
        low, dots, high = values[0].partition("..")
        if len(values) > 1 or not dots:
            return cls(key.strip(), values)
        try:
            bounds = float(low), float(high)
        except ValueError:
            raise RecipeError(f"'{text}': a range has two numbers, for example lr=0.001..0.1.") from None
        if not bounds[0] < bounds[1]:
            raise RecipeError(f"'{text}': the range must go from a smaller to a larger number.")
        return cls(key.strip(), (), *bounds)

    def draw(self, u: float) -> Any:
        """The value at the place ``u`` in [0, 1); ranges above 0 are even on a logarithmic scale."""
        if self.values:
            return self.values[int(u * len(self.values))]
        if self.low > 0:
            value = math.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + u * (self.high - self.low)
        return float(f"{value:.4g}")


def _split(text: str) -> list[str]:
    """Cut at commas outside brackets and quotes."""
    pieces, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0 and not quote:
            pieces.append("")
        else:
            pieces[-1] += letter
    return pieces


def grid(axes: Sequence[Axis]) -> list[Settings]:
    """Every combination of the axes' values, the last axis fastest."""
    for axis in axes:
        if not axis.values:
            raise RecipeError(f"The range of '{axis.key}' needs a random search; say how many draws (--random N).")
    size = math.prod(len(axis.values) for axis in axes)
    if size > MOST:
        raise RecipeError(f"The grid has {size} combinations, more than {MOST}; use a random search (--random N).")
    keys = [axis.key for axis in axes]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*(axis.values for axis in axes))]


def _countable(axes: Sequence[Axis]) -> bool:
    """Whether all combinations can be listed."""
    return all(axis.values for axis in axes) and math.prod(len(axis.values) for axis in axes) <= MOST


def sample(axes: Sequence[Axis], count: int, key: Key) -> list[Settings]:
    """``count`` different random combinations; as many as there are, where there are fewer."""
    if count < 1:
        raise RecipeError(f"A random search needs at least one draw, not {count}.")
    if _countable(axes):
        every = grid(axes)
        order = key.generator().permutation(len(every))
        return [every[i] for i in sorted(order[:count].tolist())]
    rng = key.generator()
    drawn: list[Settings] = []
    for _ in range(100 * count):
        settings = {axis.key: axis.draw(rng.random()) for axis in axes}
        if settings not in drawn:
            drawn.append(settings)
        if len(drawn) == count:
            break
    return drawn


@dataclass(frozen=True)
class Trial:
    """One combination of values and its validation scores, one per fold and seed."""

    settings: Settings
    scores: tuple[float, ...] = ()
    failed: str = ""  # why it could not be trained

    @property
    def mean(self) -> float:
        return fmean(self.scores) if self.scores else math.nan

    @property
    def deviation(self) -> float:
        return stdev(self.scores) if len(self.scores) > 1 else 0.0


@dataclass(frozen=True)
class Search:
    """A finished search."""

    metric: str
    trials: tuple[Trial, ...] = field(repr=False)
    better: int = 1  # +1: more of the metric is better, -1: less

    @property
    def ranked(self) -> list[Trial]:
        """Best first; what failed comes last; the first tried wins a tie."""
        return sorted(self.trials, key=lambda trial: -self.better * trial.mean if trial.scores else math.inf)

    @property
    def best(self) -> Trial:
        first = self.ranked[0]
        if not first.scores:
            raise TrainingError(f"No trial could be trained; the first said: {first.failed}")
        return first

    @property
    def chosen(self) -> Settings:
        return self.best.settings

    def markdown(self) -> str:
        """The table, best first."""
        keys = list(self.trials[0].settings)
        head = ["", *keys, f"validation {self.metric}", "deviation", "runs"]
        rows = []
        for place, trial in enumerate(self.ranked, 1):
            score = f"{trial.mean:.4f}" if trial.scores else f"failed: {trial.failed}"
            values = [str(trial.settings[key]) for key in keys]
            rows.append([str(place), *values, score, f"{trial.deviation:.4f}", str(len(trial.scores))])
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join("| " + " | ".join(row) + " |" for row in lines) + "\n"


def validation_score(records: Iterable[Record], metric: str, at: str = "best", better: int = 1) -> float:
    """The validation score of a run: of its best round, or of its last."""
    name = f"validation_{metric}"
    scores = [record.extra[name] for record in records if name in record.extra]
    if not scores:
        raise InputError(f"There is no validation {metric} in this run; is '{metric}' defined for these data?")
    best = max if better > 0 else min
    return float(scores[-1] if at == "last" else best(scores))


Teller = Callable[[int, int, Settings], None]


def tune(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    axes: Mapping[str, Sequence[Any]] | Sequence[Axis],
    folder: str | Path,
    *,
    random: int | None = None,
    folds: int | None = None,
    seeds: Sequence[int] | None = None,
    metric: str | None = None,
    at: str = "best",
    jobs: int = 1,
    teller: Teller | None = None,
    **overrides: Any,
) -> Search:
    """Runs a recipe for every combination (or ``random`` of them) on ``folds`` folds and ``seeds``, and ranks them.

    ``metric`` is the problem's headline unless told. ``jobs`` runs go on side by side, each in a process of its own.
    ``teller(begun, total, settings)`` is called before each run. Called again with the same arguments it does what is
    missing.
    """
    base = load(recipe, overrides)
    problem = make_problem(base.problem)
    metric = metric or problem.headline
    lines = list(_axes(axes))
    _check(base, lines, metric, at, problem)
    settings = grid(lines) if random is None else sample(lines, random, Key.root(base.seed).fold("tune"))
    recipes = [[load(base, {**one, **where}) for where in _places(base, folds, seeds)] for one in settings]
    for runs in recipes:
        prepare(runs[-1])  # a fold or a setting that does not exist is told before anything is trained
    place = Path(folder)
    _claim(place, {"recipe": base.identity, "metric": metric, "at": at, "trials": settings, "runs": len(recipes[0])})
    judge = Judge(metric, at, problem.better(metric))
    wanted = [
        TrialRun(number, made, place / "runs" / f"{number:04d}-fold{made.fold}-seed{made.seed}", judge, jobs)
        for number, runs in enumerate(recipes)
        for made in runs
    ]
    found = dict(_found(wanted, jobs, lambda done, one: teller and teller(done, len(wanted), settings[one.number])))
    search = Search(metric, tuple(_trials(settings, wanted, found)), judge.better)
    _write(search, base, place)
    return search


class Judge(NamedTuple):
    """How a run is scored."""

    metric: str
    at: str  # best or last round
    better: int  # +1: more is better, -1: less


class TrialRun(NamedTuple):
    """One run of a search."""

    number: int  # of its trial
    recipe: Recipe
    folder: Path
    judge: Judge
    jobs: int  # runs beside it


class Score(NamedTuple):
    """What came of a run: its validation score, or why there is none."""

    value: float = math.nan
    failed: str = ""
    crowded: bool = False  # the memory was full beside others


def _found(wanted: list[TrialRun], jobs: int, begun: Callable[[int, TrialRun], object]) -> Iterator[tuple[Path, Score]]:
    """The scores of runs, ``jobs`` of them at a time; those that found no memory are tried again alone."""
    count = itertools.count()
    alone = wanted
    if jobs > 1:
        alone = []
        for wanted_run, future in in_parallel(wanted, _score, jobs, begun=lambda one: begun(next(count), one)):
            score = future.result()
            if score.crowded:
                alone.append(wanted_run._replace(jobs=1))
            else:
                yield wanted_run.folder, score
    for wanted_run in alone:
        begun(min(next(count), len(wanted) - 1), wanted_run)
        yield wanted_run.folder, _score(wanted_run)


def _score(wanted_run: TrialRun) -> Score:
    """Makes a run, or takes it up where it was; also in a process of its own."""
    if wanted_run.jobs > 1:
        torch.set_num_threads(max(1, n_cores() // wanted_run.jobs))
    try:
        records = _finish(wanted_run.recipe, wanted_run.folder)
    except StateError as error:
        raise StateError(str(error)) from None  # some errors do not survive the way between processes
    except MemoryFullError as error:
        return Score(failed=str(error), crowded=wanted_run.jobs > 1)
    except (TrainingError, InputError) as error:  # also a setting whose trouble only shows when it runs
        return Score(failed=str(error))
    finally:
        give_back()
    return Score(validation_score(records, *wanted_run.judge))


def _trials(settings: list[Settings], wanted: list[TrialRun], found: Mapping[Path, Score]) -> Iterator[Trial]:
    for number, one in enumerate(settings):
        yield _trial(one, [found[run.folder] for run in wanted if run.number == number])


def _trial(settings: Settings, scores: list[Score]) -> Trial:
    failed = next((score.failed for score in scores if score.failed), "")
    return Trial(settings, () if failed else tuple(score.value for score in scores), failed)


def _axes(axes: Mapping[str, Sequence[Any]] | Sequence[Axis]) -> Iterable[Axis]:
    if not isinstance(axes, Mapping):
        return axes
    return [Axis(key, tuple(values)) for key, values in axes.items()]


def _check(base: Recipe, axes: Sequence[Axis], metric: str, at: str, problem: Problem) -> None:
    if not axes:
        raise RecipeError("There is nothing to tune; give at least one axis, for example lr=0.1,0.01.")
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise RecipeError(f"The key '{key}' is given twice; write all its values in one list.")
        if key in ("seed", "fold", "split", "data_seed"):
            raise RecipeError(f"'{key}' cannot be tuned; use --seeds and --folds to average over them.")
    if metric not in problem.goals:
        raise InputError(f"The metric is '{metric}'; it must be one of {', '.join(problem.goals)}.")
    if at not in ("best", "last"):
        raise InputError(f"The round that is scored is '{at}'; it must be 'best' or 'last'.")
    if base.split is None:
        raise RecipeError(
            "Tuning needs validation data, but this recipe has no split; "
            "add split=by_samples(fraction=0.2) or split=by_clients(folds=5)."
        )


def _places(base: Recipe, folds: int | None, seeds: Sequence[int] | None) -> list[Settings]:
    """Fold and seed of every run of a trial. Seeds change the training, never the clients."""
    if folds is not None and folds < 1:
        raise RecipeError(f"A search needs at least one fold, not {folds}.")
    chosen = range(folds) if folds is not None else [base.fold]
    data_seed = base.seed if base.data_seed is None else base.data_seed
    return [
        {"fold": fold, "seed": seed, "data_seed": data_seed}
        for fold, seed in itertools.product(chosen, seeds or [base.seed])
    ]


def _claim(place: Path, study: dict[str, Any]) -> None:
    """Takes a folder for this search, or refuses one that holds another."""
    path = place / "study.json"
    content = json.loads(json.dumps(study))
    if path.is_file() and (place / "runs").exists() and json.loads(path.read_text()) != content:
        raise StateError(f"{place} holds another search (other recipe, axes, folds or seeds); choose another folder.")
    write_json(path, content)


def _finish(recipe: Recipe, folder: Path) -> list[Record]:
    """The records of a run: as they are if it is finished, else run or resumed."""
    if read_summary(folder) is None:
        return (resume(folder) if has_checkpoint(folder) else launch(recipe, folder)).records
    return read_records(folder / "rounds.jsonl")


def _write(search: Search, base: Recipe, place: Path) -> None:
    rows = [
        {"settings": t.settings, "mean": t.mean if t.scores else None, "scores": t.scores, "failed": t.failed}
        for t in search.ranked
    ]
    write_json(place / "table.json", {"metric": search.metric, "trials": rows, "chosen": search.chosen})
    write_text(place / "table.md", search.markdown())
    write_text(place / "chosen.toml", load(base, search.chosen).to_toml())
    write_json(place / "environment.json", environment())
