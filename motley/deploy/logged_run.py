"""A run and its log: what happens is written and synced first, and then has its effect. Nothing here waits or sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from motley.core.errors import StateError
from motley.core.tasks import Weights
from motley.deploy.core import SPOOL
from motley.deploy.disks import Disk
from motley.deploy.event_log import Entry, EventLog
from motley.deploy.field_carrier import Attendance
from motley.deploy.legs import Course, Leg, begun
from motley.deploy.messages import Task
from motley.runtime.launch import Result

Event = tuple[Any, ...]
"""Kind and details of something that happened."""
BROUGHT = ("arrive", "brought")
"""Kinds of events with which something came that lies in the spool."""


class Effects(NamedTuple):
    """What follows from a step, for others to be told."""

    kept: list[tuple[int, str]]  # client and task: its update is safe
    fresh: list[str]  # tasks to be sent
    closed: list[tuple[int, str]]  # client and task: nothing is wanted of it any more
    open: dict[str, Task]  # all tasks that are out
    wanted: dict[str, Weights]  # by digest: models that clients hold and the protocol wants here
    started: bool  # the run began with this step: its time counts from here
    due: float | None  # when something is due that nobody needs to bring about
    done: bool


class LoggedRun:
    """State = f(recipe, log), kept on a disk."""

    def __init__(self, course: Course, attendance: Attendance, disk: Disk, wait_for: int, audit: bool) -> None:
        self.attendance, self.disk, self.wait_for, self.audit = attendance, disk, wait_for, audit
        self.course = course
        self.core: Leg | None = None  # the leg of the run that is under way
        self.last = 0.0  # the latest moment that was logged
        self.noted: Callable[[Entry], None] = lambda entry: None  # told of what is in the log
        self._spooled: dict[str, int] = {}  # task -> the entry of its arrival
        self._started = False

    # ------------------------------------------------------------------ after a crash
    def recover(self) -> int:
        """Goes back to where the log ends; counts this start of the server."""
        self.log = EventLog(self.disk)
        epochs = 0
        after: list[Entry] = []
        for entry in self.log.entries():
            self.last = max(self.last, entry.t)
            epochs += entry.kind == "epoch"
            if self._started:
                after.append(entry)
            elif entry.kind == "start":
                self._started = True
            else:
                self.attendance.attend(entry)
        if self._started:
            self._replay(after)
        entry = self.log.append(self.last, "epoch", epochs + 1)
        self.log.sync()
        self.noted(entry)
        if self.core is not None:
            self.core.carrier.apply(entry)
        return epochs + 1

    def _replay(self, entries: list[Entry]) -> None:
        self._know_spool(entries)
        leg = self.core = begun(self.course.first(self.attendance, self._saved))
        applied = leg.carrier.applied
        if applied > self.log.seq:
            raise StateError(
                f"The log of this run ends with entry {self.log.seq}, but its checkpoint was made after entry "
                f"{applied}: a part of the log is missing; restore the folder from a copy."
            )
        for entry in entries:
            if entry.kind == "phase":
                leg = self.core = begun(self._next(leg, entry.t))
                applied = max(entry.seq, leg.carrier.applied)
            elif entry.seq > leg.carrier.applied:
                leg.carrier.apply(entry)
        self._saved(applied)

    def _next(self, leg: Leg, now: float) -> Leg:
        """The leg that the log says began at this moment."""
        found = self.course.after(leg, self.attendance, now, self._saved) if leg.done else None
        if found is None:
            raise StateError("The log of this run does not fit its recipe; restore the folder from a copy.")
        return found

    def _know_spool(self, entries: list[Entry]) -> None:
        arrivals = {str(entry.what[0]): entry.seq for entry in entries if entry.kind in BROUGHT}
        for name in self.disk.names(SPOOL):
            task_id = name.removeprefix(SPOOL)
            if task_id in arrivals:
                self._spooled[task_id] = arrivals[task_id]
            elif not self.audit:
                self.disk.delete(name)  # it came and was not logged: its agent will offer it again

    def _saved(self, applied: int) -> None:
        """A checkpoint holds everything up to this entry: what came before it is needed no longer."""
        for task_id in [task_id for task_id, seq in self._spooled.items() if seq <= applied and not self.audit]:
            del self._spooled[task_id]
            self.disk.delete(SPOOL + task_id)

    # ------------------------------------------------------------------ one step
    def commit(self, events: list[Event], t: float) -> Effects:
        """Logs what happened, ``t`` seconds after the start, and lets it have its effect."""
        try:
            return self._commit(events, max(t, self.last + 1e-6))
        except OSError as error:
            raise StateError(
                f"The log of this run cannot be written ({error.strerror or error}); nothing that was acknowledged is "
                "lost. Make room, then 'motley resume' goes on."
            ) from error

    def _commit(self, events: list[Event], t: float) -> Effects:
        kept = self._take_in(events, t if self._started else 0.0)
        if not self._started:
            return self._effects(kept, self._start())
        self._tick(t)
        self._go_on()
        return self._effects(kept, False)

    def _take_in(self, events: list[Event], at: float) -> list[tuple[int, str]]:
        """Logs what is news, then applies it; whose updates are safe now."""
        entries = [self.log.append(at, *event) for event in events if self._says_something(event)]
        if entries:
            self.log.sync()
        for entry in entries:
            self.noted(entry)
        return [found for entry in entries if (found := self._apply(entry)) is not None]

    def _go_on(self) -> None:
        """Where a leg is done, the next one begins."""
        while self.core is not None and self.core.done:
            following = self.course.after(self.core, self.attendance, self.last, self._saved)
            if following is None:
                return
            entry = self.log.append(self.last, "phase")
            self.log.sync()
            self.noted(entry)
            self._saved(entry.seq)  # what earlier legs came to is on disk
            self.core = begun(following)

    def _tick(self, t: float) -> None:
        """Time passes; where something is due, that is an event like others."""
        assert self.core is not None
        due = self.core.carrier.loop.next_timer()
        if due is not None and due <= t:
            entry = self.log.append(t, "tick")
            self.log.sync()
            self.core.carrier.apply(entry)
        self.last = t

    def _says_something(self, event: Event) -> bool:
        """Whether an event is news."""
        kind, first = event[0], event[1]
        if kind in ("arrive", "lose"):
            return self.core is not None and first in self.core.carrier.outside.open
        if kind in ("brought", "missed"):
            return self.core is not None and first in self.core.carrier.elsewhere.wanted
        if kind in ("here", "gone"):
            return bool(self.attendance.here[first]) != (kind == "here")
        return True

    def _apply(self, entry: Entry) -> tuple[int, str] | None:
        if self.core is None:
            self.attendance.attend(entry)
            return None
        kept = None
        if entry.kind in BROUGHT:
            self._spooled[str(entry.what[0])] = entry.seq
        if entry.kind == "arrive":
            task_id = str(entry.what[0])
            sent = self.core.carrier.outside.open.get(task_id)
            kept = None if sent is None else (sent.task.client, task_id)
        self.core.carrier.apply(entry)
        return kept

    def _start(self) -> bool:
        """Begins the run once enough seats are taken."""
        if int(self.attendance.here.sum()) < self.wait_for:
            return False
        core = self.course.first(self.attendance, self._saved)
        entry = self.log.append(0.0, "start")
        self.log.sync()
        self.noted(entry)
        self.core, self._started, self.last = core, True, 0.0
        core.begin()
        return True

    def _effects(self, kept: list[tuple[int, str]], started: bool) -> Effects:
        if self.core is None:
            return Effects(kept, [], [], {}, {}, False, None, False)
        carrier = self.core.carrier
        fresh, closed = carrier.news()
        out = {task_id: sent.task for task_id, sent in carrier.outside.open.items()}
        wanted = {blob.digest for task in out.values() for blob in (task.start, task.down) if blob is not None}
        self.core.blobs.retain(wanted)
        wishes = dict(carrier.elsewhere.wanted)
        return Effects(kept, fresh, closed, out, wishes, started, carrier.loop.next_timer(), self.core.done)

    # ------------------------------------------------------------------ updates
    def accept(self, task_id: str, incoming: str) -> bool:
        """Looks at what came of a task and puts it where its arrival can be logged; False where nobody waits for it."""
        if self.core is None or task_id not in self.core.carrier.outside.open:
            self.disk.delete(incoming)
            return False
        try:
            self.core.check(task_id, incoming)
        except ValueError:
            self.disk.delete(incoming)
            raise
        self.disk.move(incoming, SPOOL + task_id)
        return True

    def accept_model(self, digest: str, incoming: str) -> bool:
        """As `accept`, of a model that a client held."""
        if self.core is None or digest not in self.core.carrier.elsewhere.wanted:
            self.disk.delete(incoming)
            return False
        try:
            self.core.check_model(incoming)
        except ValueError:
            self.disk.delete(incoming)
            raise
        self.disk.move(incoming, SPOOL + digest)
        return True

    def came(self, client: int, task_id: str) -> bool:
        """Whether the update of a task has arrived before."""
        return self.core is not None and task_id in self.core.carrier.outside.arrived.get(client, ())

    def finish(self) -> Result:
        assert self.core is not None
        result = self.course.finish(self.core)
        entry = self.log.append(self.last, "end")
        self.log.sync()
        self.noted(entry)
        return result
