"""What phases of an experiment hand on, and what a phase is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from motley.core.registry import Registry
from motley.data.federated import FederatedData
from motley.fleet.fleet import Fleet
from motley.runtime.experiment import Given
from motley.runtime.launch import Listening
from motley.runtime.result import Result


class World(NamedTuple):
    """What phases hand on."""

    given: Given = Given()  # what was given in Python
    data: FederatedData | None = None  # clients' data, where a phase has changed them
    fleet: Fleet | None = None
    models: Mapping[str, dict[str, Tensor]] = {}  # by the name of the phase that made it: tensors by name
    now: float = 0.0  # seconds on the virtual clock
    last: Result | None = None  # of the last phase that trained
    made: Mapping[str, Any] = {}  # whatever else phases hand on, by the name of the phase that made it


class Phase(Protocol):
    """One step of an experiment."""

    name: str

    def run(self, world: World, folder: Path | None, listeners: Listening) -> World:
        """Carries the phase out in its directory, or goes on with it, or reads back what it left."""


PHASES: Registry[Phase] = Registry("kind of phase")
"""Factories ``f(name, recipe, **arguments) -> Phase``; add your own with ``@PHASES.add(hidden=("name", "recipe"))``."""


def given_of(world: World) -> Given:
    """What a run in this world is given: what earlier phases have changed in place of what was given in Python."""
    return world.given._replace(
        data=world.data if world.data is not None else world.given.data,
        fleet=world.fleet if world.fleet is not None else world.given.fleet,
        now=world.now,
    )
