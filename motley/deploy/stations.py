"""What an agent works with: one thing for a whole run, or another in each of its phases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from motley.core.layout import Layout
from motley.core.part import Method
from motley.core.tasks import Assignment, Finished, Kept
from motley.deploy.messages import Task
from motley.runtime.experiment import Experiment

Train = Callable[[Task, Assignment, Kept | None], Awaitable[Finished]]
"""Trains a task; what it is cancelled in the middle of leaves nothing behind."""


class Station(NamedTuple):
    """Who does the tasks of a phase, and for which method and model."""

    train: Train
    method: Method
    layout: Layout

    @classmethod
    def of(cls, e: Experiment, train: Train) -> Station:
        return cls(train, e.method, e.net.layout)


class Stations(Protocol):
    """Gives the station of a phase."""

    async def at(self, phase: str) -> Station: ...

    async def close(self) -> None:
        """Ends processes and lets go of memory."""


class OneStation:
    """Implements `Stations` for a recipe without phases."""

    def __init__(self, station: Station, close: Callable[[], Awaitable[None]] | None = None) -> None:
        self.station, self._close = station, close

    async def at(self, phase: str) -> Station:
        return self.station

    async def close(self) -> None:
        if self._close is not None:
            await self._close()
