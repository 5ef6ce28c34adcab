"""Runs what is missing of some reproductions: side by side, within a budget, resumable."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from motley.client.problems import make_problem
from motley.core.errors import InputError, MemoryFullError, MotleyError, StateError, TrainingError
from motley.data.datasets import load as load_dataset
from motley.engine.device import pick
from motley.engine.executor import n_cores
from motley.reproduce.reproduction import Cell, Reproduction
from motley.reproduce.results import Finished, Results, compact
from motley.runtime.launch import Result, has_checkpoint, launch, resume
from motley.runtime.parallel_runs import give_back, in_parallel
from motley.runtime.recipe import Recipe, load
from motley.runtime.records import Record, environment, read_records, validations


@dataclass(frozen=True)
class WantedRun:
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
    """How to carry wanted runs out."""

    jobs: int = 1
    budget: float | None = None  # seconds after which no run is started
    grace: float = 60.0  # seconds more that runs under way may take before they pause
    executor: str | None = None
    device: str | None = None
    cache: Path = Path("runs") / "reproduce"

    def placed(self, recipe: Recipe) -> Recipe:
        """A recipe on the executor and the device that were asked for."""
        wanted = (("executor", self.executor), ("device", self.device))
        changes = {key: value for key, value in wanted if value is not None}
        return load(recipe, changes) if changes else recipe


class Paused(Exception):  # noqa: N818
    """A run stopped at the end of the budget; it goes on from its checkpoint next time."""


def wanted_runs(
    made: Sequence[Reproduction], results: Results, plan: Plan, quick: bool = False, seeds: list[int] | None = None
) -> list[WantedRun]:
    """What is missing, the most valuable first: the first seed of every place before the second of any."""
    found: dict[str, WantedRun] = {}
    ordered: list[tuple[int, WantedRun]] = []
    for reproduction in made:
        for cell in reproduction.cells(quick):
            for position, draw in enumerate(reproduction.draws(quick, seeds)):
                recipe = plan.placed(reproduction.recipe_of(cell, draw, quick))
                if results.find(recipe) is not None:
                    continue
                _wish(found, ordered, position, reproduction, cell, recipe, plan, quick)
    ordered.sort(key=lambda pair: pair[0])
    return [found[wanted_run.recipe.identity] for _, wanted_run in ordered]


def matching(wanted: list[WantedRun], texts: Sequence[str] | None) -> list[WantedRun]:
    """The wanted runs whose place holds one of the texts; all of them without texts."""
    found = [wanted_run for wanted_run in wanted if not texts or any(text in wanted_run.cell for text in texts)]
    if wanted and not found:
        asked, places = " or ".join(texts or ()), "; ".join(dict.fromkeys(wanted_run.cell for wanted_run in wanted))
        raise InputError(f"No missing run is of a place with '{asked}'; those missing are: {places}.")
    return found


def _wish(
    found: dict[str, WantedRun],
    ordered: list[tuple[int, WantedRun]],
    position: int,
    made: Reproduction,
    cell: Cell,
    recipe: Recipe,
    plan: Plan,
    quick: bool,
) -> None:
    """Adds a wanted run; where two tables want the same run, it is made once with the diagnostics of both."""
    key = recipe.identity
    if key in found:
        both = sorted({*found[key].recipe.diagnostics, *recipe.diagnostics})
        found[key] = replace(found[key], recipe=load(found[key].recipe, {"diagnostics": both}))
        return
    found[key] = WantedRun(made.name, str(cell), quick, recipe, plan.cache / key)
    ordered.append((position, found[key]))


def carry_out(wanted_run: WantedRun) -> Finished:
    """Makes one run, or takes it up where it was; for use in a process of its own."""
    if wanted_run.threads:
        torch.set_num_threads(wanted_run.threads)

    def watch(_: Record) -> None:
        if wanted_run.stop_at is not None and time.time() > wanted_run.stop_at:
            raise Paused

    try:
        if has_checkpoint(wanted_run.folder):
            result = resume(wanted_run.folder, [watch])
        else:
            shutil.rmtree(wanted_run.folder, ignore_errors=True)  # it broke off before its first checkpoint
            result = launch(wanted_run.recipe, wanted_run.folder, [watch])
    except TrainingError:
        result = diverged(wanted_run)
    except MemoryFullError:
        raise
    except MotleyError as error:
        raise StateError(str(error)) from None  # some errors do not survive the way between processes
    finally:
        give_back()
    facts = {
        **environment(),
        "command": f"motley reproduce {wanted_run.reproduction}{' --quick' if wanted_run.quick else ''}",
    }
    device = torch.cuda.get_device_name() if result.params.is_cuda else facts["processor"]
    return compact(wanted_run.reproduction, wanted_run.cell, wanted_run.quick, result, device, facts)


def diverged(wanted_run: WantedRun) -> Result:
    """A run whose model stopped being finite: guessing at the end, and the round before it that validation chooses."""
    records = read_records(wanted_run.folder / "rounds.jsonl")
    problem = make_problem(wanted_run.recipe.problem)
    seen = [record.accuracy for record in records if record.accuracy is not None]
    if not seen:
        raise StateError(f"The run {wanted_run.folder} failed in its first round.")
    guess = 1.0 / load_dataset(wanted_run.recipe.data).n_classes
    last, recipe = records[-1], wanted_run.recipe
    left = range(last.round + 1, recipe.rounds + 1)
    missed = [t for t in left if t % recipe.evaluate_every == 0 or t == recipe.rounds]
    filler = [replace(last, round=t, scores={"accuracy": guess}, extra={}) for t in missed]
    summary: dict[str, Any] = {
        "rounds": last.round,
        "accuracy": guess,
        "best_accuracy": max(seen),
        "diverged": last.round + 1,
        "seed": recipe.seed,
        "wall_s": round(last.wall_time, 3),
        "executor": recipe.executor,
    }
    if found := validations(records, problem.goals):
        summary["validated"] = found
    params = torch.zeros(1, device=pick(recipe.device))  # where it was made
    return Result(wanted_run.folder, recipe, records + filler, params, summary)


Told = Callable[[WantedRun, Finished | None, str], None]
"""Called for each wanted run: with its result, or None and what happened to it."""


def run_all(wanted: list[WantedRun], plan: Plan, told: Told) -> Iterator[Finished]:
    """Carries wanted runs out, ``jobs`` at a time, and gives results as they come; one that fails leaves the others be.

    One for which the GPU had no memory left beside the others is tried again when they are done.
    """
    deadline = None if plan.budget is None else time.time() + plan.budget
    stop_at = None if deadline is None else deadline + plan.grace
    ready = [replace(wanted_run, stop_at=stop_at, threads=max(1, n_cores() // plan.jobs)) for wanted_run in wanted]
    if plan.jobs > 1:
        crowded: list[WantedRun] = []
        yield from _beside(ready, plan.jobs, deadline, told, crowded)
        ready = crowded
    for wanted_run in ready:
        if deadline is not None and time.time() >= deadline:
            return
        finished = _one(wanted_run, partial(carry_out, wanted_run), told)
        if finished is not None:
            yield finished


def _beside(
    ready: list[WantedRun], jobs: int, deadline: float | None, told: Told, crowded: list[WantedRun]
) -> Iterator[Finished]:
    """Several runs at a time; ``crowded`` gets those that found no memory."""
    for wanted_run, future in in_parallel(ready, carry_out, min(jobs, max(1, len(ready))), deadline):
        finished = _one(wanted_run, future.result, told, crowded)
        if finished is not None:
            yield finished


def _one(
    wanted_run: WantedRun, work: Callable[[], Finished], told: Told, crowded: list[WantedRun] | None = None
) -> Finished | None:
    try:
        finished = work()
    except Paused:
        told(wanted_run, None, "paused; it goes on from its checkpoint next time")
    except Exception as error:  # a bug in one method: the others go on
        if crowded is not None and isinstance(error, MemoryFullError | torch.OutOfMemoryError):
            told(wanted_run, None, "the GPU's memory was full; it is tried again when the others are done")
            crowded.append(wanted_run)
        else:
            told(wanted_run, None, str(error) if isinstance(error, MotleyError) else _first_line(error))
    else:
        told(wanted_run, finished, "")
        return finished
    return None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def say(wanted_run: WantedRun, finished: Finished | None, trouble: str) -> None:
    """One line per run on stderr."""
    what = f"{wanted_run.reproduction}: {wanted_run.cell}, seed {wanted_run.recipe.seed}"
    what += f", fold {wanted_run.recipe.fold}" if wanted_run.recipe.split else ""
    if finished is None:
        print(f"{what}: {trouble}", file=sys.stderr, flush=True)
    else:
        score = 100 * float(finished.summary["accuracy"])
        print(f"{what}: {score:.2f} % in {finished.summary['wall_s']:.0f} s", file=sys.stderr, flush=True)
