"""Runs what is missing of some reproductions: side by side, within a budget, resumable."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from motley.core.errors import InputError, MemoryFullError, MotleyError, StateError, TrainingError
from motley.data.datasets import load as load_dataset
from motley.reproduce.spec import Cell, Reproduction
from motley.reproduce.store import Finished, Results, compact, key_of
from motley.run import runner
from motley.run.executors.base import n_cores
from motley.run.executors.place import pick
from motley.run.recipe import Recipe, load
from motley.run.records import Record, environment, read_records, validations
from motley.run.side_by_side import give_back, side_by_side


@dataclass(frozen=True)
class Errand:
    """One run that is wanted."""

    reproduction: str
    cell: str
    quick: bool
    recipe: Recipe
    folder: Path  # of the run while it is going on
    stop_at: float | None = None  # seconds since the epoch at which it must pause
    threads: int = 0  # of torch; 0: leave alone


@dataclass(frozen=True)
class Plan:
    """How to carry errands out."""

    jobs: int = 1
    budget: float | None = None  # seconds after which no run is started
    grace: float = 60.0  # seconds more that runs under way may take before they pause
    executor: str | None = None
    device: str | None = None
    cache: Path = Path("runs") / "reproduce"


class Paused(Exception):  # noqa: N818
    """A run stopped at the end of the budget; it goes on from its checkpoint next time."""


def errands(
    made: Sequence[Reproduction], results: Results, plan: Plan, quick: bool = False, seeds: list[int] | None = None
) -> list[Errand]:
    """What is missing, the most valuable first: the first seed of every place before the second of any."""
    found: dict[str, Errand] = {}
    ordered: list[tuple[int, Errand]] = []
    for reproduction in made:
        for cell in reproduction.cells(quick):
            for position, draw in enumerate(reproduction.draws(quick, seeds)):
                recipe = _placed(reproduction.recipe_of(cell, draw, quick), plan)
                if results.find(recipe) is not None:
                    continue
                _wish(found, ordered, position, reproduction, cell, recipe, plan, quick)
    ordered.sort(key=lambda pair: pair[0])
    return [found[key_of(errand.recipe)] for _, errand in ordered]


def matching(wanted: list[Errand], texts: Sequence[str]) -> list[Errand]:
    """The errands whose place holds one of the texts; all of them without texts."""
    found = [errand for errand in wanted if not texts or any(text in errand.cell for text in texts)]
    if wanted and not found:
        asked, places = " or ".join(texts), "; ".join(dict.fromkeys(errand.cell for errand in wanted))
        raise InputError(f"No missing run is of a place with '{asked}'; those missing are: {places}.")
    return found


def _wish(
    found: dict[str, Errand],
    ordered: list[tuple[int, Errand]],
    position: int,
    made: Reproduction,
    cell: Cell,
    recipe: Recipe,
    plan: Plan,
    quick: bool,
) -> None:
    """Adds an errand; where two tables want the same run, it is made once with the diagnostics of both."""
    key = key_of(recipe)
    if key in found:
        both = sorted({*found[key].recipe.diagnostics, *recipe.diagnostics})
        found[key] = replace(found[key], recipe=load(found[key].recipe, {"diagnostics": both}))
        return
    found[key] = Errand(made.name, str(cell), quick, recipe, plan.cache / key)
    ordered.append((position, found[key]))


def _placed(recipe: Recipe, plan: Plan) -> Recipe:
    changes = {key: value for key, value in (("executor", plan.executor), ("device", plan.device)) if value is not None}
    return load(recipe, changes) if changes else recipe


def carry_out(errand: Errand) -> Finished:
    """Makes one run, or takes it up where it was; for use in a process of its own."""
    if errand.threads:
        torch.set_num_threads(errand.threads)

    def watch(_: Record) -> None:
        if errand.stop_at is not None and time.time() > errand.stop_at:
            raise Paused

    begun = errand.folder / "checkpoint" / "checkpoint.json"
    try:
        if begun.is_file():
            result = runner.resume(errand.folder, watch)
        else:
            shutil.rmtree(errand.folder, ignore_errors=True)  # it broke off before its first checkpoint
            result = runner.start(errand.recipe, errand.folder, watch)
    except TrainingError:
        result = diverged(errand)
    except MemoryFullError:
        raise
    except MotleyError as error:
        raise StateError(str(error)) from None  # some errors do not survive the way between processes
    finally:
        give_back()
    facts = {**environment(), "command": f"motley reproduce {errand.reproduction}{' --quick' if errand.quick else ''}"}
    device = torch.cuda.get_device_name() if result.params.is_cuda else facts["processor"]
    return compact(errand.reproduction, errand.cell, errand.quick, result, device, facts)


def diverged(errand: Errand) -> runner.Result:
    """A run whose model stopped being finite: guessing at the end, and the round before it that validation chooses."""
    records = read_records(errand.folder / "rounds.jsonl")
    seen = [record.accuracy for record in records if record.accuracy is not None]
    if not seen:
        raise StateError(f"The run {errand.folder} failed in its first round.")
    guess = 1.0 / load_dataset(errand.recipe.data).n_classes
    last, recipe = records[-1], errand.recipe
    left = range(last.round + 1, recipe.rounds + 1)
    missed = [t for t in left if t % recipe.evaluate_every == 0 or t == recipe.rounds]
    filler = [replace(last, round=t, accuracy=guess, extra={}) for t in missed]
    summary: dict[str, Any] = {
        "rounds": last.round,
        "accuracy": guess,
        "best_accuracy": max(seen),
        "diverged": last.round + 1,
        "seed": recipe.seed,
        "wall_s": round(last.wall_time, 3),
        "executor": recipe.executor,
    }
    if found := validations(records):
        summary["validated"] = found
    params = torch.zeros(1, device=pick(recipe.device))  # where it was made
    return runner.Result(errand.folder, recipe, records + filler, params, summary)


Told = Callable[[Errand, Finished | None, str], None]
"""Called for each errand: with its result, or None and what happened to it."""


def run_all(wanted: list[Errand], plan: Plan, told: Told) -> Iterator[Finished]:
    """Carries errands out, ``jobs`` at a time, and gives results as they come; one that fails leaves the others be.

    One for which the GPU had no memory left beside the others is tried again when they are done.
    """
    begun = time.time()
    deadline = None if plan.budget is None else begun + plan.budget
    stop_at = None if deadline is None else deadline + plan.grace
    ready = [replace(errand, stop_at=stop_at, threads=max(1, n_cores() // plan.jobs)) for errand in wanted]
    if plan.jobs > 1:
        crowded: list[Errand] = []
        for errand, future in side_by_side(ready, carry_out, min(plan.jobs, max(1, len(ready))), deadline):
            finished = _one(errand, future.result, told, crowded)
            if finished is not None:
                yield finished
        ready = crowded
    for errand in ready:
        if deadline is not None and time.time() >= deadline:
            return
        finished = _one(errand, lambda errand=errand: carry_out(errand), told)  # type: ignore[misc]
        if finished is not None:
            yield finished


def _one(
    errand: Errand, work: Callable[[], Finished], told: Told, crowded: list[Errand] | None = None
) -> Finished | None:
    try:
        finished = work()
    except Paused:
        told(errand, None, "paused; it goes on from its checkpoint next time")
    except Exception as error:  # a bug in one method: the others go on
        if crowded is not None and isinstance(error, MemoryFullError | torch.OutOfMemoryError):
            told(errand, None, "the GPU's memory was full; it is tried again when the others are done")
            crowded.append(errand)
        else:
            told(errand, None, str(error) if isinstance(error, MotleyError) else _first_line(error))
    else:
        told(errand, finished, "")
        return finished
    return None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def say(errand: Errand, finished: Finished | None, trouble: str) -> None:
    """One line per run on stderr."""
    what = f"{errand.reproduction}: {errand.cell}, seed {errand.recipe.seed}"
    what += f", fold {errand.recipe.fold}" if errand.recipe.split else ""
    if finished is None:
        print(f"{what}: {trouble}", file=sys.stderr, flush=True)
    else:
        score = 100 * float(finished.summary["accuracy"])
        print(f"{what}: {score:.2f} % in {finished.summary['wall_s']:.0f} s", file=sys.stderr, flush=True)
