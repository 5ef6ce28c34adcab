"""The batched executor without enough memory, and in several processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import pytest
import torch
from torch import Tensor

from motley.bench.agreement import tiny_experiment
from motley.client.site import Site
from motley.core.errors import MemoryFullError, StateError
from motley.core.part import Method
from motley.core.tasks import Assignment, Failed, Finished
from motley.core.types import Client
from motley.engine.batched.group import Group
from motley.engine.batched.together import Batched
from motley.engine.batched_pool import BatchedPool, deal
from motley.engine.executor import Own
from motley.engine.loop import Loop
from motley.methods import make_method
from motley.runtime.launch import Run
from tests.engine.work import OnCpu, batched, by_loop, finished, gap, reports, tasks_of


class Cramped(OnCpu):
    """A lane with the memory for so many clients, which are those of each attempt to train."""

    def __init__(self, site: Site, rooms: Iterator[int]) -> None:
        super().__init__(site)
        self.rooms = rooms
        self.tried: list[int] = []

    def train(self, group: Group, c: Client) -> Client:
        self.tried.append(len(group.tasks))
        if len(group.tasks) > next(self.rooms):
            raise torch.OutOfMemoryError("no room")
        return super().train(group, c)


@pytest.mark.parametrize("room", [1, 2, 5])
def test_too_many_clients_for_the_memory_are_halved(room: int) -> None:
    e = tiny_experiment(make_method("fedavg"), "mlp")
    lane = Cramped(e.site, repeat(room))
    made, tasks = Batched(e.site, "cpu", lane), tasks_of(e)
    assert gap(reports(made, tasks), by_loop(e, tasks)) < 2e-5
    assert lane.tried[0] == 6
    assert lane.widest <= max(room, 3)
    lane.tried.clear()
    reports(made, tasks)
    assert max(lane.tried) <= room, "it remembers"


def test_one_client_that_does_not_fit_is_an_error() -> None:
    e = tiny_experiment(make_method("fedavg"), "mlp")
    with pytest.raises(torch.OutOfMemoryError):
        reports(Batched(e.site, "cpu", Cramped(e.site, repeat(0))), tasks_of(e))


def test_one_client_has_a_second_try_when_memory_was_given_back() -> None:
    e = tiny_experiment(make_method("fedavg"), "mlp")
    lane = Cramped(e.site, iter([1, 0, 1]))
    made, tasks = Batched(e.site, "cpu", lane), tasks_of(e)[:1]
    reports(made, tasks)
    assert len(lane.traced) == 1
    assert gap(reports(made, tasks), by_loop(e, tasks)) < 2e-5
    assert lane.tried == [1, 1, 1]
    assert len(lane.traced) == 2, "nothing was kept, so the step was traced anew"


class Full:
    """An executor whose device has no memory left."""

    name = "full"
    device = torch.device("cpu")

    def submit(self, assignments: Sequence[Assignment], own: Own) -> Iterator[Finished | Failed]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 160.00 MiB. And a long text")

    def close(self) -> None:
        """Nothing to free."""


def test_a_run_without_memory_ends_with_a_sentence() -> None:
    run = Run(tiny_experiment(make_method("fedavg"), "mlp"), executor=Full())
    with pytest.raises(MemoryFullError, match=r"^The GPU's memory was full after round \d; take a smaller") as caught:
        run.go()
    assert "\n" not in str(caught.value)


def final(method: Method, **changes: Any) -> Tensor:
    return Run(tiny_experiment(method, "mlp", **changes)).go().params


def test_workers_get_as_many_steps() -> None:
    assert deal([5, 30, 10, 15, 1], 2) == [[1, 4], [3, 2, 0]]
    assert deal([4], 3) == [[0], [], []]
    assert sorted(i for hand in deal([3, 3, 3, 3], 2) for i in hand) == [0, 1, 2, 3]


def test_worker_processes_train_their_shares() -> None:
    e = tiny_experiment(make_method("scaffold"), "mlp")
    workers = BatchedPool(e.site, 2)
    try:
        tasks = tasks_of(e)
        theirs = finished(Loop(e.site), tasks)
        assert gap(reports(workers, tasks), [done.report for done in theirs]) < 2e-5
        assert workers.waste.wanted > 0
        kept = {a.client: done.own for a, done in zip(tasks, theirs, strict=True)}
        assert gap(reports(workers, tasks, kept), reports(Loop(e.site), tasks, kept)) < 2e-5
    finally:
        workers.close()


def test_a_group_that_cannot_be_trained_leaves_the_others_alone() -> None:
    e = tiny_experiment(make_method("scaffold+fes"), "mlp")  # who is limited trains other layers, so not together

    def own(client: int) -> None:
        if client == 1:
            raise StateError("What client 1 keeps cannot be read back.")

    tasks = tasks_of(e)
    done = list(batched(e).submit(tasks, own))
    failed = {one.id: str(one.error) for one in done if isinstance(one, Failed)}
    assert failed == dict.fromkeys(("1.1", "1.3", "1.5"), "What client 1 keeps cannot be read back.")
    assert {one.report.id for one in done if isinstance(one, Finished)} == {"1.0", "1.2", "1.4"}


def test_a_run_is_the_same_twice() -> None:
    method = make_method("rebafl")
    assert torch.equal(final(method, executor="batched"), final(method, executor="batched"))
