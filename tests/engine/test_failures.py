"""Tasks that fail, and workers that die: failures are values, and nobody else is harmed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import pytest
import torch

from motley.core.errors import InputError, MotleyError, TrainingError, UnknownNameError
from motley.core.part import Part, compose, part
from motley.core.tasks import Assignment, Failed, Finished
from motley.core.types import Client, Data, Mine
from motley.engine import Executor
from motley.engine.batched_pool import BatchedPool
from motley.engine.loop import Loop
from motley.engine.pool import Pool
from motley.methods import make_method
from motley.runtime.experiment import Experiment
from motley.runtime.launch import Run
from motley.server.step import mix_with_previous
from tests import tiny
from tests.engine.work import closing, gap, nothing, reports, tasks_of


@part("correct")
def fails_on_some_clients() -> Part:
    """Fails on some clients, each in its own way."""

    def begin(c: Client, me: Mine, data: Data) -> Client:
        client = int(c.facts.client)
        if client == 3:
            raise ZeroDivisionError("client code failed")
        if client == 4:
            raise UnknownNameError("thing", "fo", ["foo"])
        if client == 5:
            os._exit(3)
        return c

    return Part(begin=begin)


@part("correct")
def ends_its_process() -> Part:
    """Whoever trains is gone."""

    def begin(c: Client, me: Mine, data: Data) -> Client:
        os._exit(3)

    return Part(begin=begin)


def failing() -> Experiment:
    return tiny.experiment(compose(fails_on_some_clients()))


def both(executor: Executor, tasks: Sequence[Assignment]) -> tuple[dict[int, Finished], dict[int, MotleyError]]:
    """What was trained and why the rest was not, by client."""
    client = {a.id: a.client for a in tasks}
    made: dict[int, Finished] = {}
    failed: dict[int, MotleyError] = {}
    for done in executor.submit(tasks, nothing):
        if isinstance(done, Failed):
            failed[client[done.id]] = done.error
        else:
            made[client[done.report.id]] = done
    return made, failed


def test_a_loop_goes_on_after_a_task_that_fails() -> None:
    e = failing()
    made, failed = both(Loop(e.site), tasks_of(e, steps=(2, 2, 2), clients=(0, 4, 1)))
    assert list(made) == [0, 1]
    assert list(failed) == [4]
    assert isinstance(failed[4], UnknownNameError)


def test_a_loop_leaves_errors_in_client_code_to_the_debugger() -> None:
    e = failing()
    with pytest.raises(ZeroDivisionError, match="client code failed"):
        both(Loop(e.site), tasks_of(e, steps=(2,), clients=(3,)))


def test_a_pool_goes_on_after_tasks_that_fail() -> None:
    """Also after one whose worker died."""
    e = failing()
    with closing(Pool(e.site, 2)) as pool:
        made, failed = both(pool, tasks_of(e))
        assert sorted(made) == [0, 1, 2]
        assert sorted(failed) == [3, 4, 5]
        assert isinstance(failed[3], TrainingError)
        assert str(failed[3]) == "Client 3 failed in a worker process: ZeroDivisionError: client code failed"
        assert isinstance(failed[4], UnknownNameError)
        assert str(failed[4]).startswith("There is no thing named 'fo'; did you mean 'foo'")
        assert str(failed[5]).startswith("A worker process died while training client 5")
        assert "use fewer workers" in str(failed[5])
        again, none = both(pool, tasks_of(e)[:3])
        assert not none
        for client, done in again.items():
            assert torch.equal(done.report.payload, made[client].report.payload)
    pool.close()  # twice does no harm


def test_where_all_workers_have_died_every_task_fails() -> None:
    e = tiny.experiment(compose(ends_its_process()))
    for workers in (Pool(e.site, 2), BatchedPool(e.site, 2)):
        with closing(workers):
            for _ in range(2):
                made, failed = both(workers, tasks_of(e))
                assert not made
                assert sorted(failed) == list(range(6))
                assert all("A worker process died" in str(error) for error in failed.values())


def test_what_a_worker_cannot_train_together_fails_together() -> None:
    e = failing()  # it looks at numbers, which clients that are trained together have not
    with closing(BatchedPool(e.site, 2)) as workers:
        made, failed = both(workers, tasks_of(e))
    assert not made
    assert sorted(failed) == list(range(6))
    assert all(str(error).startswith("A worker process failed: RuntimeError") for error in failed.values())


def test_after_a_failure_nobody_takes_old_reports_for_new_ones() -> None:
    """Several tasks were under way, two of them given to one worker, when whoever asked went away."""
    e = failing()
    with closing(Pool(e.site, 2)) as pool:
        many = tasks_of(e, steps=(2, 2, 2, 9, 2, 2, 2, 2, 2), clients=(0, 1, 2, 3, 0, 1, 2, 0, 1))
        done = pool.submit(many, nothing)
        assert any(isinstance(one, Failed) for one in done)
        del done
        tasks = tasks_of(e, steps=(4, 3, 2, 4, 3, 2, 1), clients=(2, 1, 0, 2, 1, 0, 1))
        ours, theirs = reports(pool, tasks), reports(Loop(e.site), tasks)
    assert all(torch.equal(a.payload, b.payload) for a, b in zip(ours, theirs, strict=True))


def test_workers_that_train_together_give_no_old_reports_either() -> None:
    e = tiny.experiment(make_method("scaffold"))
    with closing(BatchedPool(e.site, 2)) as workers:
        for _ in workers.submit(tasks_of(e), nothing):
            break
        tasks = tasks_of(e, steps=(1, 2, 3, 4, 5, 6))
        assert gap(reports(workers, tasks), reports(Loop(e.site), tasks)) < 2e-5


def test_a_run_stops_at_a_failure_and_leaves_the_number_of_threads_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(UnknownNameError, match="There is no thing named 'fo'"):
            Run(tiny.experiment(compose(fails_on_some_clients(), only_client_4()))).go()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def only_client_4() -> Part:
    return Part(name="only", select=lambda s, rnd, pool: torch.tensor([4]))


def test_what_cannot_be_sent_to_workers_is_told() -> None:
    method = compose(mix_with_previous(alpha=lambda t: 0.1))
    with pytest.raises(InputError, match=r"cannot be sent to worker processes.*executor=loop"):
        tiny.run(method, executor="pool", workers=1)
    assert tiny.run(method, rounds=1).records


def test_an_interruption_in_the_middle_of_a_message_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come after a task was noted as sent and before it was: nobody may wait for its answer."""

    def interrupted(pipe: object, message: bytes) -> bool:
        raise KeyboardInterrupt

    def too_long(*_: object) -> None:
        raise TimeoutError("the pool waits for an answer that cannot come")

    e = tiny.experiment()
    with closing(Pool(e.site, 2)) as pool:
        monkeypatch.setattr(pool.workers, "send", interrupted)
        before = signal.signal(signal.SIGALRM, too_long)
        signal.alarm(20)
        try:
            with pytest.raises(KeyboardInterrupt):
                list(pool.submit(tasks_of(e), nothing))
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        assert pool.workers.pipes == []
