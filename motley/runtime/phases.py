"""An experiment as phases over one world: train, then fine-tune; later others that generate data or prune a model.

A phase takes a world and gives a world. Each has a directory of its own, which for training looks like that of a plain
run, and resumes by itself: what is finished is read back, what was interrupted goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch

from motley.core.errors import InputError, RecipeError, UnknownNameError
from motley.core.files import write_json
from motley.runtime import data_phases, gan_phase, generate_phase  # noqa: F401  (they register kinds of phases)
from motley.runtime.experiment import Given, flat_model, prepare
from motley.runtime.folders import PREPARATION
from motley.runtime.guarantee import over_phases
from motley.runtime.launch import Listening, Result, begin, has_checkpoint, launch_one, read_summary
from motley.runtime.origin import check_origin
from motley.runtime.recipe import Recipe, load
from motley.runtime.records import read_records
from motley.runtime.saving import write_model
from motley.runtime.world import PHASES, Phase, World, given_of

__all__ = ["PHASES", "Phase", "TrainPhase", "World", "check_phases", "make_phases", "run_phases"]


class TrainPhase:
    """What a plain run is."""

    def __init__(self, name: str, recipe: Recipe) -> None:
        self.name, self.recipe = name, recipe

    def check(self, given: Given, earlier: Mapping[str, Phase]) -> None:
        """Refuses what cannot be run."""
        prepare(load(self.recipe, {"initial": None}), given)

    def run(self, world: World, folder: Path | None, listeners: Listening) -> World:
        recipe, start = self.recipe, None
        if recipe.initial in world.models:
            start, recipe = world.models[str(recipe.initial)], load(recipe, {"initial": None})
        given = given_of(world)._replace(named_start=start)
        finished = None if folder is None else read_summary(folder)
        if folder is not None and finished is not None:
            result = _read_back(recipe, folder, given, finished)
        else:
            going_on = folder is not None and has_checkpoint(folder)
            result = launch_one(recipe, folder, listeners, given, resume=going_on)
        assert result.net is not None
        named = result.net.layout.unflatten(result.params.cpu())
        return world._replace(
            models={**world.models, self.name: named}, now=result.records[-1].virtual_time, last=result
        )


def _read_back(recipe: Recipe, folder: Path, given: Given, summary: dict[str, Any]) -> Result:
    """What a run left that is finished."""
    experiment, path = prepare(recipe, given), folder / "model.safetensors"
    net = experiment.net
    params = flat_model(safetensors.torch.load_file(path), net, str(path))
    return Result(folder, recipe, read_records(folder / "rounds.jsonl"), params, summary, net, experiment.preparation)


@PHASES.add(hidden=("name", "recipe"))
def train(name: str, recipe: Recipe) -> Phase:
    """Rounds of federated training, as a plain recipe describes them."""
    return TrainPhase(name, recipe)


def make_phases(recipe: Recipe) -> list[Phase]:
    """The phases of a recipe: each a copy of it with the phase's own values in place."""
    made: list[Phase] = []
    for number, table in enumerate(recipe.phases, 1):
        made.append(_phase(recipe, {"name": f"phase{number}", **table}, [phase.name for phase in made]))
    return made


def check_phases(recipe: Recipe, given: Given | None = None) -> list[Phase]:
    """The phases of a recipe; what cannot be run is refused, also in a later one, before anything is trained."""
    phases = make_phases(recipe)
    earlier: dict[str, Phase] = {}
    for phase in phases:
        check = getattr(phase, "check", None)  # a phase may do without
        if check is not None:
            check(given or Given(), earlier)
        earlier[phase.name] = phase
    return phases


def _phase(recipe: Recipe, table: Mapping[str, Any], earlier: list[str]) -> Phase:
    content = dict(table)
    name, kind = str(content.pop("name")), str(content.pop("kind", "train"))
    if name in earlier or not name.replace("-", "").replace("_", "").isalnum():
        raise RecipeError(f"The phase '{name}' needs a name of its own, of letters, digits, '-' and '_'.")
    known = PHASES[kind].parameters
    arguments = {key: content.pop(key) for key in list(content) if key in known}
    for key in content:
        if key not in Recipe.model_fields:
            raise UnknownNameError(f"key of the phase '{name}'", key, [*Recipe.model_fields, *known])
    own = load({**recipe.model_dump(exclude={"phases"}), **content, "name": f"{recipe.name}/{name}"})
    if own.initial is not None and own.initial not in earlier and not Path(own.initial).exists():
        raise RecipeError(f"The phase '{name}' starts from '{own.initial}', which is no earlier phase and no file.")
    return PHASES.make(kind, name, own, **arguments)


def run_phases(
    recipe: Recipe, folder: Path | None, listeners: Listening, given: Given | None, *, resume: bool
) -> Result:
    """Carries out all phases, each in a directory below ``folder``; what is finished is not done again."""
    phases = _phases(recipe, folder, given, resume)
    world = World(given or Given())
    summaries: dict[str, Any] = {}
    for number, phase in enumerate(phases, 1):
        place = None if folder is None else folder / f"{number}-{phase.name}"
        before, world = world, phase.run(world, place, listeners)
        summaries[phase.name] = _summary(before, world, place)
    if world.last is None:
        raise InputError("No phase of this recipe trains a model, so there is no result.")
    summary = {**world.last.summary, "run": None if folder is None else str(folder), **_over_all(summaries)}
    last = world.last
    if folder is not None:
        _leave(folder, last, summary)
    return Result(folder, recipe, last.records, last.params, summary, last.net, last.preparation)


def _leave(folder: Path, last: Result, summary: dict[str, Any]) -> None:
    """What a plain run leaves at its end, too: the model of the last phase that trained, and the summary."""
    assert last.net is not None
    if last.preparation is not None:
        write_json(folder / PREPARATION, last.preparation.as_dict())
    write_model(folder / "model.safetensors", last.net, last.model, last.preparation)
    write_json(folder / "summary.json", summary)


def _over_all(summaries: dict[str, Any]) -> dict[str, Any]:
    """What holds for all phases together; the rest of a summary is the last phase's."""
    traffic = {name: sum(one.get(name, 0) for one in summaries.values()) for name in ("bytes_up", "bytes_down")}
    private = over_phases(summaries)
    return {**traffic, **({} if private is None else {"privacy": private}), "phases": summaries}


def _phases(recipe: Recipe, folder: Path | None, given: Given | None, resume: bool) -> list[Phase]:
    """The phases, with their directory begun; or as they were begun before."""
    if resume:
        if folder is not None:
            check_origin(folder, recipe, given)
        return make_phases(recipe)
    phases = check_phases(recipe, given)
    if folder is not None:
        begin(recipe, folder, given)
    return phases


def _summary(before: World, after: World, place: Path | None) -> dict[str, Any]:
    """What a phase left in its directory, or told at its end; nothing where it trained nothing."""
    kept = None if place is None else read_summary(place)
    return kept or (after.last.summary if after.last is not None and after.last is not before.last else {})
