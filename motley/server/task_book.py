"""Tasks that were given out: which are out, which have arrived, which are over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from motley.core.codec import Content
from motley.core.tasks import Assignment, Delivery, Event, Report, Update, Weights
from motley.core.types import Outcomes, Tree
from motley.server.tally import Tally


class BookedTask:
    """A task that was given and not yet taken, lost or given up."""

    __slots__ = ("arrived_at", "assignment", "given_at", "held", "number", "status", "update", "why")

    def __init__(self, assignment: Assignment, number: int, given_at: float) -> None:
        self.assignment = assignment
        self.number = number  # counts dispatches
        self.given_at = given_at
        self.status = "out"  # held, arrived, lost, given up, taken
        self.held = False  # its transmission is or was delayed; the device is free
        self.update: Update | None = None
        self.arrived_at: float | None = None
        self.why = ""  # it was lost

    @property
    def id(self) -> str:
        return self.assignment.id

    @property
    def client(self) -> int:
        return self.assignment.client

    @property
    def round(self) -> int:
        return self.assignment.round

    def done(self) -> bool:
        """Whether its update is there."""
        return self.update is not None

    def over(self) -> bool:
        """Arrived, lost, given up, or held back for a later round: nothing more comes of it in this round."""
        return self.status != "out"

    def result(self) -> Update | None:
        return self.update


class Tasks:
    """Tasks in the order in which they came; one is found and removed at once, however many there are."""

    def __init__(self) -> None:
        self._tasks: dict[str, BookedTask] = {}

    def add(self, task: BookedTask) -> None:
        self._tasks[task.id] = task

    def remove(self, task: BookedTask) -> None:
        self._tasks.pop(task.id, None)

    def get(self, task_id: str) -> BookedTask | None:
        return self._tasks.get(task_id)

    def __contains__(self, task: BookedTask) -> bool:
        return self._tasks.get(task.id) is task

    def __iter__(self) -> Iterator[BookedTask]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)


class Ended(NamedTuple):
    """A task that is over, and what came of it."""

    assignment: Assignment
    reached: float  # epochs the device trained; 0 where nothing came
    done: float  # epochs behind what came; 0 where nothing came
    came: bool


class TaskBook:
    """Every task from its dispatch to its end. ``decode`` turns a payload into a change of the weights [P]."""

    def __init__(self, decode: Callable[[Tree], Tensor]) -> None:
        self.open = Tasks()  # given, neither taken, lost nor given up
        self.inbox = Tasks()  # of these, arrived
        self.tally = Tally()
        self.events: Callable[[Event], None] | None = None  # called with everything that happens
        self._decode = decode
        self._given = 0  # tasks so far
        self._ended: list[Ended] = []  # tasks over since the last round's end

    @property
    def next_number(self) -> int:
        """That of the next task."""
        return self._given

    def give(self, assignment: Assignment, now: float) -> BookedTask:
        task = BookedTask(assignment, self._given, now)
        self.open.add(task)
        self._given += 1
        self.tell("dispatch", assignment, now)
        return task

    def deliver(self, delivery: Delivery, now: float) -> BookedTask | None:
        """Takes note of what became of a task; None where nobody waits for it any more."""
        task = self.open.get(delivery.id)
        if task is None or task.update is not None:
            return None
        self.tally.bytes_up += delivery.bytes_up
        if delivery.what == "held":
            task.status, task.held = "held", True
            self.tell("hold", task.assignment, now)
        elif delivery.report is None:
            task.status, task.why = "lost", delivery.why
            self.open.remove(task)
            self.tally.lost += 1
            self._end(task, None)
            self.tell("lose", task.assignment, now)
        else:
            self._arrive(task, delivery.report, now)
            self.tell("arrive", task.assignment, now, task.update, delivery.bytes_up)
        return task

    def _arrive(self, task: BookedTask, report: Report, now: float) -> None:
        a = task.assignment
        delta, held = self._change(a, report)
        task.update = Update(
            id=a.id,
            client=a.client,
            round=a.round,
            start=a.start,
            delta=delta,
            trained=report.trained,
            extras=report.extras,
            n=report.n,
            loss=report.loss,
            steps=report.steps,
            epochs=report.epochs,
            lr=a.lr,
            duration=now - task.given_at,
            width=report.width,
            reached=report.reached,
            held=held,
        )
        task.status, task.arrived_at = "arrived", now
        self.inbox.add(task)

    def _change(self, a: Assignment, report: Report) -> tuple[Tensor, Weights | None]:
        """What a client changed [P]; nothing, and its new model, where that stays with it."""
        if report.held is not None:
            return torch.zeros(0), report.held
        delta = self._decode(report.payload)
        if not a.keep:
            return delta, None
        return delta[:0], Weights(a.start.value + delta, holder=a.client)

    def take(self, tasks: Sequence[BookedTask] | None = None, at_most: int | None = None) -> list[Update]:
        """What has arrived (of these), in order of arrival; the rest stays."""
        wanted = None if tasks is None else {task.id for task in tasks}
        ready = [task for task in self.inbox if wanted is None or task.id in wanted]
        ready.sort(key=lambda task: (task.arrived_at, task.number))
        return [self.take_one(task) for task in ready[:at_most]]

    def take_one(self, task: BookedTask) -> Update:
        """The update of a task that has arrived."""
        update = task.update
        assert update is not None
        task.status = "taken"
        self.open.remove(task)
        self.inbox.remove(task)
        self._end(task, update)
        self.tally.arrived += 1
        if any(update.trained.tolist()):
            self.tally.losses.append((update.loss, update.n))
        return update

    def give_up(self, tasks: Iterable[BookedTask], now: float) -> list[str]:
        """Waits no longer for these; ids of those it had waited for."""
        ids = []
        for task in tasks:
            if task in self.open:
                self.open.remove(task)
                self.inbox.remove(task)
                task.status = "given up"
                self.tally.late += 1
                self._end(task, None)
                self.tell("give up", task.assignment, now)
                ids.append(task.id)
        return ids

    def _end(self, task: BookedTask, update: Update | None) -> None:
        done, reached = (update.epochs, update.reached) if update is not None else (0.0, 0.0)
        self._ended.append(Ended(task.assignment, reached, done, update is not None))
        self.tally.concluded += 1
        self.tally.stragglers += update is None or done < task.assignment.epochs
        self.tally.dropouts += update is None

    @property
    def dropped(self) -> tuple[int, ...]:
        """Clients whose tasks ended without an update since the last round's end."""
        return tuple(one.assignment.client for one in self._ended if not one.came)

    def outcomes(self) -> Outcomes:
        """How tasks ended since the last round's end."""
        numbers = [(one.assignment.epochs, one.assignment.floor, one.reached, one.done) for one in self._ended]
        columns = torch.tensor(numbers, dtype=torch.float32).reshape(-1, 4).unbind(1)
        ids = torch.tensor([one.assignment.client for one in self._ended], dtype=torch.int64)
        number = torch.tensor([one.assignment.round for one in self._ended], dtype=torch.int64)
        return Outcomes(ids, number, *columns)

    def forget_ended(self) -> None:
        self._ended.clear()

    def tell(self, what: str, a: Assignment, now: float, update: Update | None = None, bytes_up: int = 0) -> None:
        """Tells whoever listens what happened to a task."""
        if self.events is None:
            return
        facts: dict[str, Any] = {"task": a.id}
        if update is not None:
            facts |= {"loss": float(update.loss), "epochs": update.epochs, "steps": update.steps, "bytes_up": bytes_up}
            facts["seconds"] = update.duration
        if what == "dispatch":
            facts["assignment"] = a
        self.events(Event(now, what, a.client, a.round, facts))

    def tell_each(self, what: str, updates: Iterable[Update], now: float) -> None:
        """Tells whoever listens what happened to updates that were taken."""
        if self.events is not None:
            for update in updates:
                self.events(Event(now, what, update.client, update.round, {"task": update.id}))

    # ------------------------------------------------------------------ saving
    def state(self) -> Tree:
        return {
            "given": self._given,
            "tasks": [_written(task) for task in self.open],
            "inbox": [task.id for task in self.inbox],
        }

    def load(self, tree: Tree, model: Callable[[Content], Weights]) -> None:
        """Goes back to what `state` gave; ``model`` makes one handle of equal contents."""
        self._given = tree["given"]
        self.open, self.inbox = Tasks(), Tasks()
        for row in tree["tasks"]:
            self.open.add(_read(row, model))
        for name in tree["inbox"]:
            task = self.open.get(name)
            assert task is not None
            self.inbox.add(task)


def _written(task: BookedTask) -> Tree:
    return {
        "assignment": task.assignment.to_tree(),
        "number": task.number,
        "given_at": task.given_at,
        "status": task.status,
        "held": task.held,
        "arrived_at": task.arrived_at,
        "update": None if task.update is None else task.update.to_tree(),
    }


def _read(row: Tree, model: Callable[[Content], Weights]) -> BookedTask:
    start = row["assignment"]["start"]
    start = model(start) if isinstance(start, Content) else Weights.from_tree(start)
    task = BookedTask(Assignment.from_tree(row["assignment"])._replace(start=start), row["number"], row["given_at"])
    task.status, task.held, task.arrived_at = row["status"], row["held"], row["arrived_at"]
    task.update = None if row["update"] is None else Update.from_tree(row["update"], start)
    return task
