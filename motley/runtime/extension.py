"""A run taken up again, perhaps to go on for longer than it was first asked to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from motley.client.problems import make_problem
from motley.core.errors import MotleyError, RecipeError, StateError
from motley.core.files import held, write_text
from motley.core.learning_rates import needs_the_end
from motley.runtime import checkpoint
from motley.runtime.experiment import Given
from motley.runtime.folders import has_checkpoint, open_run
from motley.runtime.origin import check_origin, renew_origin
from motley.runtime.recipe import WITHOUT_EFFECT, Recipe, load, parse_override
from motley.runtime.records import Record, read_records
from motley.runtime.stopping import parse_stop, reason_to_stop

LONGER = ("rounds", "until", "stop")
"""Keys that say when a run ends: what comes before does not depend on them."""


def reopened(folder: Path, changes: Iterable[str] | Mapping[str, Any] = (), things: Given | None = None) -> Recipe:
    """The recipe of a run's directory with changes that leave alone what has been trained.

    What lets the run go on for longer is written into the directory, so that it holds from now on; with another recipe
    or other things than it was begun with, the directory stays as it is.
    """
    given = dict(changes) if isinstance(changes, Mapping) else dict(map(parse_override, changes))
    for key in given:
        if key not in (*WITHOUT_EFFECT, *LONGER):
            allowed = ", ".join([*LONGER, *WITHOUT_EFFECT[2:]])
            raise RecipeError(
                f"A resumed run cannot change '{key}', only when it ends and what leaves its result alone: {allowed}."
            )
    before = open_run(folder)
    longer = load(before, {key: value for key, value in given.items() if key in LONGER})
    if longer != before:
        check_origin(folder, before, things)
        with held(folder):
            _extend(folder, before, longer)
    return load(longer, given)


def _extend(folder: Path, before: Recipe, longer: Recipe) -> None:
    """Writes the recipe of a run that is to end later; it must be one whose beginning is what has been trained."""
    if before.phases:
        raise RecipeError("A run with phases cannot be extended; start it anew with more rounds in its phases.")
    done = int(checkpoint.read(folder / "checkpoint")["round"]) if has_checkpoint(folder) else 0
    records = [record for record in _records(folder) if record.round <= done]
    _check(before, longer, records)
    _forget_the_end(before, longer, records)
    write_text(folder / "rounds.jsonl", "".join(record.to_line() + "\n" for record in records))
    write_text(folder / "recipe.toml", longer.to_toml())
    renew_origin(folder, longer)
    (folder / "summary.json").unlink(missing_ok=True)  # it is no longer finished


def _records(folder: Path) -> list[Record]:
    log = folder / "rounds.jsonl"
    return read_records(log) if log.is_file() else []


def _check(before: Recipe, longer: Recipe, records: list[Record]) -> None:
    """Refuses an end that lies before what has been trained, or that would have changed it."""
    done = len(records)
    if done and longer.rounds != before.rounds and needs_the_end(before.lr_schedule):
        raise RecipeError(
            f"The learning rate of this run falls over its {before.rounds} rounds (lr_schedule={before.lr_schedule}), "
            f"so with {longer.rounds} it would have been another run; start it anew, or say rounds= in the schedule."
        )
    if longer.rounds < done:
        raise RecipeError(f"The run has come to round {done}, so it cannot end after {longer.rounds}.")
    if longer.until is not None and records and records[-1].virtual_time > longer.until:
        moment = f"{records[-1].virtual_time:g}"
        raise RecipeError(f"The run has come to {moment} virtual seconds, so it cannot end after {longer.until:g}.")
    if longer.stop is not None:
        _check_stop(longer, records)


def _check_stop(longer: Recipe, records: list[Record]) -> None:
    try:
        rules = parse_stop(str(longer.stop), make_problem(longer.problem))
    except MotleyError as error:
        raise RecipeError(f"The run cannot be given another 'stop': {error}") from None
    for number in range(1, len(records)):
        if reason_to_stop(rules, records[:number]) is not None:
            raise StateError(
                f"With stop='{longer.stop}' the run would have ended after round {number}, but it has come to round "
                f"{len(records)}; start it anew."
            )


def _forget_the_end(before: Recipe, longer: Recipe, records: list[Record]) -> None:
    """A round that was evaluated because it was the last is not, in a run that goes on."""
    if records and records[-1].round % before.evaluate_every and records[-1].round < longer.rounds:
        records[-1].scores = {}
        records[-1].extra = {k: v for k, v in records[-1].extra.items() if not k.startswith(("validation_", "own_"))}
