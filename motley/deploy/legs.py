"""What a deployed run consists of: one leg, or one for each phase of its recipe, over the same seats and in one log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from motley.deploy.blob_store import BlobStore
from motley.deploy.field_carrier import Attendance, FieldCarrier
from motley.runtime.launch import Result

Saved = Callable[[int], None]
"""Told after which entry a checkpoint was made."""


class Leg(Protocol):
    """A part of a run that is moved by the entries of its log."""

    carrier: FieldCarrier
    blobs: BlobStore

    @property
    def round(self) -> int:
        """How far it is."""

    @property
    def has_checkpoint(self) -> bool: ...

    @property
    def done(self) -> bool: ...

    def begin(self) -> None:
        """The protocol runs as far as it can before anything has happened."""

    def take_up(self) -> None:
        """Goes on from the last checkpoint."""

    def check(self, task_id: str, name: str) -> None:
        """Refuses a file that cannot be the report of an open task: `ReportError`, or ValueError."""

    def check_model(self, name: str) -> None:
        """Refuses a file that cannot be a model that a client held."""

    def close(self) -> None:
        """Lets go of its directory."""


class Course(Protocol):
    """The legs of a run, one after the other."""

    def first(self, attendance: Attendance, saved: Saved) -> Leg: ...

    def after(self, leg: Leg, attendance: Attendance, now: float, saved: Saved) -> Leg | None:
        """Ends a leg that is done and gives the next one, which begins at this moment; None after the last."""

    def finish(self, leg: Leg) -> Result:
        """Ends the last leg."""


def begun(leg: Leg) -> Leg:
    """A leg at its beginning, or where it was last saved."""
    if leg.has_checkpoint:
        leg.take_up()
    else:
        leg.begin()
    return leg
