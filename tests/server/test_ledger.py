"""The books of a federation, without a clock, a fleet or an engine: what is told to them by hand, and their state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from motley.core import codec
from motley.core.keys import Key
from motley.core.tasks import Assignment, Delivery, Report, Update
from motley.core.types import Round, Setting, Tree
from motley.methods import make_method
from motley.server.ledger import Ledger, Pace
from motley.server.task_book import BookedTask
from tests import tiny

EVERYONE = np.ones(6, bool)
NET = tiny.network(tiny.data())


def ledger(method: str = "scaffold+fedavgm+oort", **pace: Any) -> Ledger:
    given: dict[str, Any] = {"rounds": 9, "cohort": 4, "epochs": 2.0, "lr": 0.1, **pace}
    setting = Setting(NET, NET.initial(), 6, n=torch.tensor(tiny.SIZES).float(), seconds=torch.ones(6))
    return Ledger(make_method(method), setting, Key.root(3), Pace(**given))


def report(a: Assignment, scale: float = 0.01) -> Report:
    """What a client could have sent: numbers that depend on its task alone."""

    def drawn(name: str) -> Tensor:
        return torch.from_numpy(a.key.fold(name).generator().normal(0, scale, NET.size).astype(np.float32))

    extras: dict[str, Tree] = {"control_variates": drawn("variate")} if "control_variates" in a.down.tree else {}
    n = float(tiny.SIZES[a.client])
    return Report(a.id, drawn("change"), torch.ones(NET.n_layers), extras, torch.tensor(1.5), n, a.epochs, 8, a.epochs)


def given(books: Ledger, now: float) -> tuple[Round, list[BookedTask]]:
    rnd = books.begin_round(now)
    cohort = books.choose(rnd, EVERYONE.copy(), None)
    return rnd, books.assign(rnd, cohort, None, np.zeros(len(cohort), bool), now)


def arrive(books: Ledger, task: BookedTask, now: float) -> None:
    books.book.deliver(Delivery(task.id, "arrived", report(task.assignment), 10), now)


def taken(books: Ledger, at_most: int | None = None) -> list[Update]:
    return books.taken(books.book.take(at_most=at_most))


def first_rounds(books: Ledger) -> None:
    """Two rounds, after which two tasks are out, one is held back, and one has arrived and not been taken."""
    rnd, tasks = given(books, 0.0)
    for task in tasks[:3]:
        arrive(books, task, 1.0)
    books.aggregate(rnd, taken(books), 1.0)
    books.end_round(rnd)
    books.new_tally()
    rnd, tasks = given(books, 1.0)
    arrive(books, tasks[0], 2.0)
    books.aggregate(rnd, taken(books), 2.0)
    arrive(books, tasks[1], 2.5)
    books.book.deliver(Delivery(tasks[2].id, "held"), 2.5)
    books.memory["walk"] = {"age": 2, "model": books.weights.value * 2}
    books.end_round(rnd)
    books.new_tally()


def last_rounds(books: Ledger) -> list[Any]:
    """Everything that is left comes, and two more rounds are played."""
    seen: list[Any] = [[(task.id, task.client, task.status) for task in books.book.open]]
    for now in (3.0, 4.0):
        rnd, tasks = given(books, now)
        seen.append([task.id for task in tasks])
        for task in [task for task in books.book.open if not task.done()]:
            arrive(books, task, now + 0.5)
        updates = taken(books)
        seen.append([(one.id, one.round, one.duration) for one in updates])
        books.aggregate(rnd, updates, now + 0.5)
        books.end_round(rnd)
        tally = books.new_tally()
        seen.append((tally.participants, tally.arrived, tally.merged, tally.stale))
    return seen


def test_a_ledger_in_the_middle_of_a_run_goes_on_from_its_state() -> None:
    books, other = ledger(), ledger()
    first_rounds(books)
    assert sorted(task.status for task in books.book.open) == ["arrived", "held", "out", "out"]
    other.load(codec.loads(codec.dumps(books.state())))
    assert torch.equal(other.memory["walk"]["model"], books.memory["walk"]["model"])
    assert last_rounds(other) == last_rounds(books)
    assert torch.equal(other.weights.value, books.weights.value)
    assert codec.dumps(other.state()) == codec.dumps(books.state())
    assert (other.chosen == books.chosen).all()
    assert (other.heard == books.heard).all()


def test_loading_leaves_the_state_as_it_was() -> None:
    books, other = ledger(), ledger()
    first_rounds(books)
    before = codec.dumps(books.state())
    other.load(codec.loads(before))
    last_rounds(other)
    assert codec.dumps(books.state()) == before


def test_models_that_tasks_share_are_written_once_and_read_as_one() -> None:
    books, other = ledger("fedavg"), ledger("fedavg")
    rnd, _ = given(books, 0.0)
    books.end_round(rnd)
    content = codec.dumps(books.state())
    assert len(content) < 2 * 4 * NET.size + 6000
    other.load(codec.loads(content))
    assert {id(task.assignment.start) for task in other.book.open} == {id(other.weights)}


def test_what_nobody_waits_for_is_told_so_and_counts_nothing() -> None:
    books = ledger("fedavg")
    _, tasks = given(books, 0.0)
    books.book.give_up(tasks[:1], 1.0)
    late = Delivery(tasks[0].id, "arrived", report(tasks[0].assignment), 10)
    assert books.book.deliver(late, 2.0) is None
    arrive(books, tasks[1], 2.0)
    again = Delivery(tasks[1].id, "arrived", report(tasks[1].assignment), 10)
    assert books.book.deliver(again, 3.0) is None, "a report that comes twice counts once"
    assert (books.tally.bytes_up, books.tally.late) == (10, 1)
    assert [one.client for one in taken(books)] == [tasks[1].client]


def test_updates_that_were_taken_and_left_unused_are_named_at_the_rounds_end() -> None:
    books = ledger("fedavg")
    rnd, tasks = given(books, 0.0)
    for task in tasks:
        arrive(books, task, 1.0)
    updates = taken(books)
    accepted, refused = books.aggregate(rnd, updates[:1], 1.0)
    assert (accepted, refused) == ([updates[0].id], [])
    assert books.discard(updates[1:2]) == [updates[1].id]
    assert books.end_round(rnd) == [one.id for one in updates[2:]]
    assert (books.tally.late, books.tally.arrived, books.tally.merged) == (1, 3, 1)


def test_an_update_that_is_not_finite_is_refused_and_its_client_was_not_heard() -> None:
    books = ledger("fedavg", on_bad_update="drop")
    rnd, tasks = given(books, 0.0)
    for task, scale in zip(tasks, (0.01, np.inf, 0.01, 0.01), strict=True):
        books.book.deliver(Delivery(task.id, "arrived", report(task.assignment, scale), 10), 1.0)
    accepted, refused = books.aggregate(rnd, taken(books), 1.0)
    assert refused == [tasks[1].id]
    assert accepted == [task.id for task in (tasks[0], *tasks[2:])]
    assert books.heard[tasks[1].client] == 0
    assert (books.tally.lost, books.tally.arrived) == (1, 3)
    assert bool(torch.isfinite(books.weights.value).all())


def test_a_preview_changes_nothing() -> None:
    books = ledger("fedavgm")
    rnd, tasks = given(books, 0.0)
    for task in tasks:
        arrive(books, task, 1.0)
    updates, before = taken(books), codec.dumps(books.state())
    shown = books.preview(rnd, updates)
    assert codec.dumps(books.state()) == before
    books.aggregate(rnd, updates, 1.0)
    assert torch.equal(shown.value, books.weights.value)


def test_parts_of_a_federation_name_their_tasks_apart() -> None:
    setting = Setting(NET, NET.initial(), 6)
    pace = Pace(3, 2, 1.0, 0.1)
    names = []
    for name in ("", "0/", "0/1/"):
        books = Ledger(make_method("fedavg"), setting, Key.root(0), pace, name)
        names += [task.id for task in given(books, 0.0)[1]]
    assert names == ["1.0", "1.1", "0/1.0", "0/1.1", "0/1/1.0", "0/1/1.1"]


@pytest.mark.parametrize("waiting", [False, True])
def test_who_has_a_task_is_not_chosen_unless_it_is_held_up(waiting: bool) -> None:
    books = ledger("fedavg", cohort=6)
    _, tasks = given(books, 0.0)
    books.book.deliver(Delivery(tasks[0].id, "held"), 1.0)
    rnd = books.begin_round(1.0)
    chosen = books.choose(rnd, EVERYONE.copy(), None, waiting=waiting)
    assert chosen == ([tasks[0].client] if waiting else [])
