"""Executors: the same seed gives the same model, bit for bit, from one process and from many."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from motley.core.codec import Content
from motley.core.errors import InputError
from motley.core.part import Part, compose, part
from motley.core.tasks import Finished, Weights
from motley.core.types import Client, Data, Mine
from motley.engine import EXECUTORS, make_executor
from motley.engine.batched.together import Batched
from motley.engine.batched_pool import BatchedPool
from motley.engine.executor import n_cores
from motley.engine.loop import Loop
from motley.engine.pool import SLOTS, Pool
from motley.methods import make_method
from tests import tiny
from tests.engine.work import closing, nothing, reports, tasks_of

METHOD = "scaffold+fedprox(mu=0.1)+fedavgm+ama"


def settings(**changes: Any) -> dict[str, Any]:
    return {"fleet": tiny.uneven_fleet(), "rounds": 3, "cohort": 6, **changes}


def test_the_registry_knows_them() -> None:
    assert {"loop", "pool", "batched"} <= set(EXECUTORS.entries)


def test_a_pool_has_a_worker_for_each_core_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    with closing(make_executor("pool", tiny.experiment().site)) as pool:
        assert isinstance(pool, Pool)
        assert len(pool.workers.pipes) == n_cores() == 1
    monkeypatch.delattr(os, "sched_getaffinity")  # as where there is no affinity
    assert n_cores() == 64


def test_an_executor_takes_arguments() -> None:
    """What the short form says comes before what the recipe says for all."""
    site = tiny.experiment().site
    with closing(make_executor("pool(workers=1)", site, workers=3)) as pool:
        assert isinstance(pool, Pool)
        assert len(pool.workers.pipes) == 1
    with closing(make_executor("pool", site, workers=2)) as pool:
        assert isinstance(pool, Pool)
        assert len(pool.workers.pipes) == 2
    with closing(make_executor("batched(workers=2, device=cpu)", site)) as workers:
        assert isinstance(workers, BatchedPool)
        assert len(workers.workers.pipes) == 2
    assert isinstance(make_executor("batched(device=cpu)", site), Batched)
    assert isinstance(make_executor("loop", site, workers=4, device="cpu"), Loop)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("pool(worker=2)", "The executor 'pool' takes no argument 'worker'; its arguments are: workers"),
        ("loop(workers=2)", "The executor 'loop' takes no argument 'workers'; its arguments are: none"),
        ("loop+pool", r"A run has one executor, but 'loop\+pool' names 2"),
        ("pol", "There is no executor named 'pol'; did you mean 'pool'"),
    ],
)
def test_what_is_no_executor_is_refused_before_anything_begins(spec: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        tiny.experiment(executor=spec)


def test_a_pool_needs_workers() -> None:
    with pytest.raises(InputError, match="at least one worker, not 0"):
        Pool(tiny.experiment().site, 0)


def test_any_number_of_workers_gives_the_same_bits() -> None:
    reference = tiny.run(make_method(METHOD), **settings())
    again = tiny.run(make_method(METHOD), **settings())
    assert reference.summary["model_sha256"] == again.summary["model_sha256"]
    other = tiny.run(make_method(METHOD), **settings(seed=6))
    assert other.summary["model_sha256"] != reference.summary["model_sha256"]
    for workers in (1, 3):  # two workers: see the contract of parts
        result = tiny.run(make_method(METHOD), **settings(executor=f"pool(workers={workers})"))
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


def noting(begun: list[int]) -> Part:
    """Notes who begins."""

    def begin(c: Client, me: Mine, data: Data) -> Client:
        begun.append(int(c.facts.client))
        return c

    return Part(name="noting", begin=begin)


def test_a_loop_gives_each_report_before_it_trains_the_next() -> None:
    begun: list[int] = []
    e = tiny.experiment(compose(noting(begun)))
    done = Loop(e.site).submit(tasks_of(e), nothing)
    assert begun == []
    for number in range(6):
        one = next(done)
        assert isinstance(one, Finished)
        assert one.report.id == f"1.{number}"
        assert begun == list(range(number + 1))


@part("correct")
def waits_for_a_file(path: str) -> Part:
    """Client 3 begins when there is a file, or after a minute."""

    def begin(c: Client, me: Mine, data: Data) -> Client:
        until = time.monotonic() + 60
        while int(c.facts.client) == 3 and not Path(path).exists() and time.monotonic() < until:
            time.sleep(0.01)
        return c

    return Part(begin=begin)


def test_reports_come_as_they_complete(tmp_path: Path) -> None:
    """One worker is busy with a long task; the other trains all others meanwhile, so none of them waits behind it."""
    sign = tmp_path / "go"
    e = tiny.experiment(compose(waits_for_a_file(str(sign))))
    with closing(Pool(e.site, 2)) as pool:
        done = pool.submit(tasks_of(e, steps=(2, 2, 2, 60, 2, 2)), nothing)
        first = [next(done) for _ in range(5)]
        assert {one.report.id for one in first if isinstance(one, Finished)} == {"1.0", "1.1", "1.2", "1.4", "1.5"}
        sign.touch()
        last = next(done)
        assert isinstance(last, Finished)
        assert (last.report.id, last.report.steps) == ("1.3", 60)
        assert list(done) == []


@pytest.mark.parametrize(
    ("steps", "handed_out"),
    [
        ([100, 60, 50, 1, 1], [100, 60]),
        ([5] * 20, [5] * 4),
        ([90, 10, *[10] * 12], [90, 10, 10]),
        ([5], [5]),
    ],
)
def test_tasks_go_ahead_to_a_worker_only_within_its_share(steps: list[int], handed_out: list[int]) -> None:
    """A task behind a long one would wait for it though another worker is free."""
    clients = [number % 6 for number in range(len(steps))]
    e = tiny.experiment()
    asked: list[int] = []

    def own(client: int) -> None:
        asked.append(client)

    with closing(Pool(e.site, 2)) as pool:
        done = pool.submit(tasks_of(e, steps, clients), own)
        next(done)
        assert asked == clients[: len(handed_out)]
        assert sorted(steps, reverse=True)[: len(handed_out)] == handed_out
        assert len(list(done)) == len(steps) - 1


def test_large_states_travel_both_ways_without_a_standstill() -> None:
    """More tasks than workers, and what a task brings and what it gives are each more than a pipe holds."""
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


def test_equal_models_lie_once_in_the_memory_of_a_pool() -> None:
    """Whichever objects hold them."""
    e = tiny.experiment()
    with closing(Pool(e.site, 2)) as pool:
        tasks = [a._replace(start=Weights(a.start.value.clone())) for a in tasks_of(e)]
        reports(pool, tasks)
        assert int((pool.starts != 0).any(1).sum()) == 1


def test_more_models_than_a_pool_has_room_for() -> None:
    e = tiny.experiment()
    n = SLOTS + 6
    tasks = tasks_of(e, steps=[1] * n, clients=[number % 6 for number in range(n)])
    tasks = [a._replace(start=Weights(a.start.value + 0.01 * i)) for i, a in enumerate(tasks)]
    with closing(Pool(e.site, 1)) as pool:
        ours, theirs = reports(pool, tasks), reports(Loop(e.site), tasks)
    assert all(torch.equal(a.payload, b.payload) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", [Pool, BatchedPool])
def test_a_worker_is_sent_once_what_tasks_share(
    kind: type[Pool] | type[BatchedPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By content: every task brings an object of its own."""
    federated = tiny.data()
    e = tiny.experiment(make_method("scaffold"), federated=federated, net=tiny.network(federated, hidden=(100, 50)))
    sent: list[int] = []
    with closing(kind(e.site, 1)) as workers:
        send = workers.workers.send
        monkeypatch.setattr(workers.workers, "send", lambda pipe, data: sent.append(len(data)) or send(pipe, data))
        for _ in range(2):
            reports(workers, [a._replace(down=Content(a.down.tree)) for a in tasks_of(e)])
    shared = 4 * e.net.size
    assert sent[0] > shared
    assert max(sent[1:]) < shared / 2


@pytest.mark.parametrize("executor", ["pool(workers=1)", "batched(workers=2, device=cpu)"])
def test_what_a_user_gave_is_not_moved_to_shared_memory(executor: str) -> None:
    federated = tiny.data()
    net, d = tiny.network(federated), federated.dataset
    given = [d.x, d.y, d.test_x, d.test_y, *net.module.parameters()]
    tiny.run(federated=federated, net=net, rounds=1, executor=executor)
    assert not any(tensor.is_shared() for tensor in given)
