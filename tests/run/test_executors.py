"""Executors: the same seed gives the same model, bit for bit, from one process and from many."""

from __future__ import annotations

import os
import signal
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from motley.core.errors import InputError, TrainingError, UnknownNameError
from motley.core.keys import Key
from motley.core.part import PARTS, Part, compose, part
from motley.fleet.fleet import Fate
from motley.methods import make_method
from motley.run.charges import Ticket
from motley.run.executors import EXECUTORS
from motley.run.executors.base import FactsRow, Job, n_cores
from motley.run.executors.pool import Pool, _Hand, _Slots
from motley.run.runner import Run
from motley.server.step import mix_with_previous
from tests import tiny

METHOD = "scaffold+fedprox(mu=0.1)+fedavgm+ama"


def settings(**changes: Any) -> dict[str, Any]:
    return {"fleet": tiny.uneven_fleet(), "rounds": 3, "cohort": 6, **changes}


def test_the_registry_knows_them() -> None:
    assert {"loop", "pool"} <= set(EXECUTORS.entries)


def test_a_pool_has_a_worker_for_each_core_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    e = tiny.experiment()
    pool = EXECUTORS.make("pool", e.training, e.data)
    try:
        assert len(pool.processes) == n_cores() == 1  # type: ignore[attr-defined]
    finally:
        pool.close()
    monkeypatch.delattr(os, "sched_getaffinity")  # as where there is no affinity
    assert n_cores() == 64


def test_any_number_of_workers_gives_the_same_bits() -> None:
    reference = tiny.run(make_method(METHOD), **settings())
    again = tiny.run(make_method(METHOD), **settings())
    assert reference.summary["model_sha256"] == again.summary["model_sha256"]
    other = tiny.run(make_method(METHOD), **settings(seed=6))
    assert other.summary["model_sha256"] != reference.summary["model_sha256"]
    for workers in (1, 3):  # two workers: see the contract of parts
        result = tiny.run(make_method(METHOD), **settings(executor="pool", workers=workers))
        assert result.summary["model_sha256"] == reference.summary["model_sha256"], workers
        assert [r.train_loss for r in result.records] == [r.train_loss for r in reference.records]


def test_threads_of_the_server_do_not_change_the_model() -> None:
    before = torch.get_num_threads()
    federated = tiny.data(n_features=300)
    hashes = set()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            net = tiny.network(federated, hidden=(400, 50))
            result = tiny.run(make_method("fedavg"), federated=federated, net=net, rounds=2, cohort=6)
            hashes.add(result.summary["model_sha256"])
    finally:
        torch.set_num_threads(before)
    assert len(hashes) == 1


def test_training_leaves_the_number_of_threads_alone() -> None:
    before = torch.get_num_threads()
    tiny.run(rounds=1)
    assert torch.get_num_threads() == before


@part("correct")
def fails_on_some_clients() -> Part:
    """Fails on some clients, each in its own way."""

    def begin(c: Any, data: Any) -> Any:
        client = int(c.facts.client)
        if client == 3:
            raise ZeroDivisionError("client code failed")
        if client == 4:
            raise UnknownNameError("thing", "fo", ["foo"])
        if client == 5:
            os._exit(3)
        return c

    return Part(begin=begin)


PARTS.entries.pop("fails_on_some_clients")  # it is no part of Motley


def test_failures_in_workers_are_told() -> None:
    run = Run(tiny.experiment(compose(fails_on_some_clients()), executor="pool", workers=1), None)

    def train(client: int) -> Any:
        ticket = Ticket(client, 1, run.fed.weights, {}, {}, 1.0, 1.0, 1.0, 1.0, 0.1, 0.0, Fate())
        return run.executor.run(run.fed._jobs([ticket]))

    try:
        with pytest.raises(TrainingError, match="Client 3 failed in a worker process: ZeroDivisionError: client code"):
            train(3)
        with pytest.raises(UnknownNameError, match="There is no thing named 'fo'; did you mean 'foo'"):
            train(4)
        assert torch.isfinite(train(0)[0].payload).all()
        with pytest.raises(TrainingError, match=r"worker process died while training client 5.*use fewer workers"):
            train(5)
    finally:
        run.executor.close()
        run.executor.close()  # twice does no harm


def test_after_a_failure_nobody_takes_old_outcomes_for_new_ones() -> None:
    """Several jobs were under way, two of them given to one worker, when one failed."""
    pool = Run(tiny.experiment(compose(fails_on_some_clients()), executor="pool", workers=2), None)
    loop = Run(tiny.experiment(compose(fails_on_some_clients()), executor="loop"), None)

    def jobs(run: Run, clients: list[int]) -> list[Any]:
        start = run.fed.weights
        return run.fed._jobs([Ticket(c, 1, start, {}, {}, 1.0, 1.0, 1.0, 1.0, 0.1, 0.0, Fate()) for c in clients])

    try:
        with pytest.raises(TrainingError, match="Client 3 failed"):
            pool.executor.run(jobs(pool, [0, 1, 2, 3, 0, 1, 2, 0, 1]))
        clients = [2, 1, 0, 2, 1, 0, 1]
        ours, theirs = (run.executor.run(jobs(run, clients)) for run in (pool, loop))
        assert all(torch.equal(a.payload, b.payload) for a, b in zip(ours, theirs, strict=True))
    finally:
        pool.executor.close()


def test_large_states_travel_both_ways_without_a_standstill() -> None:
    """More jobs than workers, and what a job brings and what it gives are each more than a pipe holds."""
    federated = tiny.data(n_features=300)

    def trained(executor: str) -> Any:
        net = tiny.network(federated, hidden=(400, 200))
        world = {"federated": federated, "net": net, "rounds": 2, "cohort": 6, "executor": executor}
        return tiny.run(make_method("scaffold"), **world, **({"workers": 2} if executor == "pool" else {}))

    def stands_still(*_: Any) -> None:
        raise TimeoutError("The pool stands still.")

    before = signal.signal(signal.SIGALRM, stands_still)
    signal.alarm(60)
    try:
        ours = trained("pool")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert ours.summary["model_sha256"] == trained("loop").summary["model_sha256"]


def test_jobs_go_ahead_to_a_worker_only_within_its_share() -> None:
    """A job behind a long one would wait for it though another worker is free."""

    class Sent:
        """A pipe that takes everything."""

        def send_bytes(self, message: bytes) -> None:
            pass

    def handed_out(steps: list[int]) -> list[list[int]]:
        facts = FactsRow(0, 1, 1.0, np.zeros(2, np.int32), 0.1, 1.0, 1.0, 0.0, 1.0, 1.0)
        job = Job(0, torch.zeros(3), facts, 0, Key(1), {}, {}, None)
        pipes: list[Any] = [Sent(), Sent()]
        slots = _Slots(torch.zeros(2, 3))
        hand = _Hand([job._replace(steps=n) for n in steps], slots, {pipe: deque() for pipe in pipes})
        Pool._hand_out(Pool.__new__(Pool), hand)
        assert all([place for _, place in given] == [0, 1][: len(given)] for given in hand.given.values())
        return [[steps[i] for i, _ in hand.given[pipe]] for pipe in pipes]

    assert handed_out([1000, 600, 500, 1, 1]) == [[1000], [600]]
    assert handed_out([5] * 20) == [[5, 5], [5, 5]]
    assert handed_out([90, 10, *[10] * 12]) == [[90], [10, 10]]
    assert handed_out([5]) == [[5], []]


def test_what_cannot_be_sent_to_workers_is_told() -> None:
    method = compose(mix_with_previous(alpha=lambda t: 0.1))
    with pytest.raises(InputError, match=r"cannot be sent to worker processes.*executor=loop"):
        tiny.run(method, executor="pool", workers=1)
    assert tiny.run(method, rounds=1).records


def test_a_pool_needs_workers() -> None:
    made = tiny.experiment()
    with pytest.raises(InputError, match="at least one worker, not 0"):
        Pool(made.training, made.data, 0)


def test_slots_are_shared_by_equal_starts_and_given_back() -> None:
    starts = torch.zeros(2, 3)
    slots = _Slots(starts)
    a, b, c = (torch.full((3,), value) for value in (1.0, 2.0, 3.0))
    first = slots.take(a)
    assert slots.take(a) == first
    second = slots.take(b)
    assert first != second
    assert not slots.has_room(c)
    assert slots.has_room(a)
    slots.give(a)
    assert not slots.has_room(c)
    slots.give(a)
    assert slots.has_room(c)
    assert starts[slots.take(c)].tolist() == [3, 3, 3]
    assert starts[second].tolist() == [2, 2, 2]
