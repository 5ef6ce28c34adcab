"""A log replayed, with the updates that were kept or with updates that are trained anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from motley.core.errors import StateError
from motley.core.part import Method
from motley.core.tasks import Assignment, Finished, Kept, Report, Weights
from motley.deploy.agent import handed_on
from motley.deploy.blob_store import Unstored
from motley.deploy.core import Core, Plain
from motley.deploy.disks import Disk
from motley.deploy.event_log import Entry
from motley.deploy.field_carrier import Attendance, Sent, Spool
from motley.deploy.legs import Course, Leg, Saved
from motley.runtime.experiment import Experiment
from motley.runtime.launch import Result

TrainAgain = Callable[[str, Assignment, Kept | None], Finished]
"""(id of the task, what is asked, what the client keeps) -> what comes of it"""


class Retrained:
    """Implements `Spool`: what came of tasks, trained by the plain path, without wire and without agent."""

    def __init__(self, method: Method, train: TrainAgain) -> None:
        self.method, self.train = method, train
        self._own: dict[str, Kept] = {}
        self._models: dict[str, Weights] = {}  # that clients hold

    def report(self, sent: Sent) -> tuple[Report, int]:
        own = self._own.get(sent.task.basis) if sent.task.basis else None
        a = sent.assignment
        if a.start.holder is not None:
            a = a._replace(start=self._models[a.start.ref])
        done = self.train(sent.task.id, a, own)
        self._own[sent.task.id] = done.own
        if not a.keep:
            return done.report, 0
        model = handed_on(self.method, a, done.report)
        held = Weights(None, model.ref, a.client, len(model.data()))
        self._models[model.ref] = model
        return done.report._replace(payload=None, held=held), 0

    def model(self, digest: str) -> Weights:
        return self._models[digest]


def replay(
    e: Experiment, run_id: str, attendance: Attendance, entries: Iterable[Entry], disk: Disk, spool: Spool | None = None
) -> Result:
    """The run that a log tells of; without a spool its updates are those on disk."""

    def new_core(attendance: Attendance, saved: Saved) -> Core:
        return Core(e, run_id, attendance, disk, Unstored(), spool=spool)

    return replay_course(Plain(new_core), attendance, entries)


def replay_course(course: Course, attendance: Attendance, entries: Iterable[Entry]) -> Result:
    """The run that a log tells of, leg by leg."""
    leg: Leg | None = None
    for entry in entries:
        if leg is None and entry.kind != "start":
            attendance.attend(entry)
        elif leg is None:
            leg = course.first(attendance, _nothing_saved)
            leg.begin()
        elif entry.kind == "phase":
            leg = course.after(leg, attendance, entry.t, _nothing_saved) if leg.done else None
            if leg is None:
                break
            leg.begin()
        else:
            leg.carrier.apply(entry)
    if leg is None or not leg.done:
        raise StateError(
            "The log of this run does not lead to its end: it is not complete, or it or an update was changed."
        )
    return course.finish(leg)


def _nothing_saved(applied: int) -> None:
    """A replay saves nothing."""
