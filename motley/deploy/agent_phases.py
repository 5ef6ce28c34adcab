"""An agent in a recipe with phases: in each of them it trains something else, or makes samples for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from motley.core.errors import InputError, StateError
from motley.core.tasks import Assignment, Finished, Kept
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData
from motley.deploy.agent_data import own_data
from motley.deploy.disks import Disk
from motley.deploy.handing_out import told_report
from motley.deploy.messages import Task
from motley.deploy.stations import OneStation, Station
from motley.runtime.experiment import Experiment, Given, prepare
from motley.runtime.gan_phase import GanPhase, Generators
from motley.runtime.generate_phase import GeneratePhase, with_samples
from motley.runtime.generation import Made
from motley.runtime.phases import TrainPhase, make_phases
from motley.runtime.recipe import Recipe, load
from motley.runtime.world import Phase

MADE = "made/"

NewStation = Callable[[Experiment], OneStation]
"""Where an agent trains in an experiment."""


class PhaseStations:
    """Implements `Stations`: that of the phase which is under way."""

    def __init__(
        self, recipe: Recipe, seat: int, own: Dataset | None, disk: Disk, new_station: NewStation, tells: bool = True
    ) -> None:
        """``own``: its samples; None: those of the recipe, by seat. ``tells``: its policy lets it tell its classes."""
        self.recipe, self.seat, self.disk, self.tells = recipe, seat, disk, tells
        self.phases = {phase.name: phase for phase in make_phases(recipe)}
        self._new = new_station
        self._begin = None if own is None else own_data(own, seat, recipe.clients or 1)
        self._phase: str | None = None
        self._station: OneStation | None = None

    async def at(self, phase: str) -> Station:
        if phase != self._phase or self._station is None:
            await self.close()
            self._station = await asyncio.to_thread(self._made, phase)
            self._phase = phase
        return await self._station.at(phase)

    async def close(self) -> None:
        station, self._station = self._station, None
        if station is not None:
            await station.close()

    def _made(self, name: str) -> OneStation:
        phase = self.phases.get(name)
        if phase is None:
            raise StateError(f"The recipe this agent was given has no phase '{name}'; let it join again.")
        given = Given(data=self._data(name))
        if isinstance(phase, GeneratePhase):
            e = prepare(load(phase.recipe, {"initial": None}), given)
            return OneStation(Station.of(e, _Generate(self, phase, e)))
        return self._new(self.experiment(phase, given))

    def experiment(self, phase: Phase, given: Given) -> Experiment:
        """What this agent knows of a phase in which models are trained."""
        if isinstance(phase, GanPhase):
            return prepare(phase.recipe, phase.given_in(given))
        assert isinstance(phase, TrainPhase)
        return prepare(load(phase.recipe, {"initial": None}), given)

    # ------------------------------------------------------------------ its samples
    def _data(self, until: str) -> FederatedData | None:
        """Its samples when this phase begins: with what it has made in those before."""
        data = self._begin
        for name, phase in self.phases.items():
            if name == until:
                break
            if isinstance(phase, GeneratePhase) and self.disk.size(MADE + name) is not None:
                e = prepare(load(phase.recipe, {"initial": None}), Given(data=data))
                nothing = Made(e.dataset.inputs(e.dataset.x[:0]), e.dataset.y[:0], torch.zeros(0), 0)
                made = [nothing] * e.data.n_clients
                made[self.seat] = Made(**self.disk.load(MADE + name))
                data = with_samples(e.data, made)
        return data

    def generators_of(self, phase: GeneratePhase, params: Tensor, counts: Tensor) -> Generators:
        """What the server has handed out."""
        trained = self.phases[phase.wishes.of]
        assert isinstance(trained, GanPhase)
        net = trained.given_in(Given(data=self._begin)).net
        assert net is not None
        return Generators(net, params, counts.numpy().astype(np.float64), [])


class _Generate:
    """Implements `Train`: makes samples, keeps them, and tells how many there are of each class."""

    def __init__(self, stations: PhaseStations, phase: GeneratePhase, e: Experiment) -> None:
        self.stations, self.phase, self.e = stations, phase, e

    async def __call__(self, task: Task, a: Assignment, own: Kept | None) -> Finished:
        if not self.stations.tells:
            raise InputError("its policy does not let it tell its classes, which this phase asks for")
        return await asyncio.to_thread(self._carry_out, a)

    def _carry_out(self, a: Assignment) -> Finished:
        seat, down = self.stations.seat, a.down.tree
        generators = self.stations.generators_of(self.phase, a.start.value, down["counts"])
        plan = self.phase.plan(self.e, generators, down["classifier"])
        labels = self.e.data.labels[seat].astype(np.float64)
        made = plan.for_client(seat, self.e.data.client(seat), labels, down["known"].numpy())
        self.stations.disk.save(MADE + self.phase.name, made._asdict())
        counted = torch.from_numpy(labels) + torch.bincount(made.y.to(torch.int64), minlength=len(labels))
        static = int((made.origin < 0).sum())
        told = {"generated": made.generated, "kept": len(made.y) - static, "static": static, "added": len(made.y)}
        return Finished(told_report(a.id, counted, told), {})
