"""A recipe with phases, deployed: each phase is a leg, and what one came to the next begins with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from motley.core.codec import Content
from motley.core.errors import InputError
from motley.core.files import write_json
from motley.core.tasks import Weights
from motley.deploy.blob_store import BlobStore
from motley.deploy.core import Core
from motley.deploy.disks import Disk
from motley.deploy.field_carrier import Attendance, Spool
from motley.deploy.handing_out import HandOut
from motley.deploy.legs import Leg, Saved
from motley.runtime.experiment import Experiment, Given, flat_model, prepare
from motley.runtime.folders import begin
from motley.runtime.gan_phase import GanPhase, Generators, write_generators
from motley.runtime.generate_phase import GeneratePhase
from motley.runtime.launch import Listening, Result
from motley.runtime.phases import TrainPhase, make_phases
from motley.runtime.recipe import Recipe, load
from motley.runtime.world import Phase, World, given_of


class Means(NamedTuple):
    """What legs are made with."""

    run_id: str
    disk: Disk
    new_blobs: Callable[[], BlobStore]
    folder: Path | None = None
    listeners: Listening = ()
    spool: Callable[[Phase, Experiment], Spool] | None = None  # in place of the files on disk


class PhasedRun:
    """Implements `Course`."""

    def __init__(self, recipe: Recipe, means: Means) -> None:
        self.recipe, self.means = recipe, means
        self.phases = make_phases(recipe)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.number = 0
        self.world = World()
        self.summaries: dict[str, Any] = {}

    # ------------------------------------------------------------------ legs
    def first(self, attendance: Attendance, saved: Saved) -> Leg:
        self._begin_anew()
        return self._leg(attendance, 0.0, saved)

    def after(self, leg: Leg, attendance: Attendance, now: float, saved: Saved) -> Leg | None:
        if self.number + 1 == len(self.phases):
            return None
        self._end(leg)
        self.number += 1
        return self._leg(attendance, now, saved)

    def finish(self, leg: Leg) -> Result:
        self._end(leg)
        last = self.world.last
        if last is None:
            raise InputError("No phase of this recipe trains a model, so there is no result.")
        place = self.means.folder
        summary = {**last.summary, "run": None if place is None else str(place), "phases": self.summaries}
        if place is not None:
            write_json(place / "summary.json", summary)
        return Result(place, self.recipe, last.records, last.params, summary, last.net, last.preparation)

    def _folder(self, phase: Phase) -> Path | None:
        whole = self.means.folder
        return None if whole is None else whole / f"{self.number + 1}-{phase.name}"

    def _leg(self, attendance: Attendance, now: float, saved: Saved) -> Leg:
        phase = self.phases[self.number]
        self.world = self.world._replace(now=now)
        if isinstance(phase, GeneratePhase):
            return self._hand_out(phase, attendance, now)
        e = self._experiment(phase)
        folder = self._folder(phase)
        if folder is not None and not (folder / "recipe.toml").is_file():
            begin(e.recipe, folder)
        means = self.means
        spool = None if means.spool is None else means.spool(phase, e)
        return Core(
            e,
            means.run_id,
            attendance,
            means.disk,
            means.new_blobs(),
            folder=folder,
            listeners=means.listeners,
            spool=spool,
            saved=saved,
            phase=phase.name,
        )

    def _experiment(self, phase: Phase) -> Experiment:
        """What the server knows of a phase in which models are trained."""
        given = given_of(self.world)
        if isinstance(phase, GanPhase):
            return prepare(phase.recipe, phase.given_in(given))
        assert isinstance(phase, TrainPhase)
        recipe, start = phase.recipe, None
        if recipe.initial in self.world.models:
            start, recipe = self.world.models[str(recipe.initial)], load(recipe, {"initial": None})
        return prepare(recipe, given._replace(named_start=start))

    def _hand_out(self, phase: GeneratePhase, attendance: Attendance, now: float) -> HandOut:
        e = prepare(load(phase.recipe, {"initial": None}), given_of(self.world))
        generators, labels = self.world.made[phase.wishes.of], attendance.roster.labels
        if labels is None:
            raise InputError("Some agents do not tell their classes; without these nothing can be generated for them.")
        classifier = None
        if phase.wishes.labels == "classifier":
            name = str(phase.wishes.classifier)
            classifier = flat_model(self.world.models[name], e.net, f"of the phase '{name}'")
        phase.plan(e, generators, classifier).refuse_collapsed(phase.wishes.of)
        told = {"counts": torch.from_numpy(generators.counts), "known": labels.sum(0) > 0, "classifier": classifier}
        means = self.means
        return HandOut(
            attendance,
            means.run_id,
            means.disk,
            means.new_blobs(),
            phase.name,
            (Weights(generators.params), Content(told)),
            e.net.layout,
            classes=e.dataset.n_classes,
            folder=self._folder(phase),
            now=now,
            spool=None if means.spool is None else means.spool(phase, e),
        )

    # ------------------------------------------------------------------ what a leg came to
    def _end(self, leg: Leg) -> None:
        phase = self.phases[self.number]
        if isinstance(leg, HandOut):
            self.summaries[phase.name] = leg.finish()
            return
        assert isinstance(leg, Core)
        if isinstance(phase, GanPhase):
            found = Generators.of(leg.run, phase.noise)
            folder = self._folder(phase)
            if folder is not None:
                write_generators(found, folder / "generators.safetensors")
            self.world = self.world._replace(made={**self.world.made, phase.name: found})
        leg.save()
        result = leg.finish()
        self.summaries[phase.name] = result.summary
        if isinstance(phase, TrainPhase):
            assert result.net is not None
            named = result.net.layout.unflatten(result.params.cpu())
            self.world = self.world._replace(models={**self.world.models, phase.name: named}, last=result)


def settled_recipe(recipe: Recipe) -> Recipe:
    """A recipe as agents get it: between which numbers generated samples lie is the server's to say."""
    if not recipe.phases:
        return recipe
    tables = []
    for table, phase in zip(recipe.phases, make_phases(recipe), strict=True):
        network = {"network": phase.network(Given())} if isinstance(phase, GanPhase) else {}
        tables.append({"name": phase.name, **table, **network})
    return load(recipe, {"phases": tables})


def check_phased(recipe: Recipe) -> None:
    """Refuses phases that only a simulation can carry out."""
    for phase in make_phases(recipe):
        if not isinstance(phase, TrainPhase | GanPhase | GeneratePhase):
            raise InputError(
                f"The phase '{phase.name}' gives clients samples that are others', or are counted over all of them, "
                "which in a deployment stay where they are; deploy recipes whose phases are of kind train, gan or "
                "generate."
            )
