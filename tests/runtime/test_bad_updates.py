"""Updates that are no numbers, and executors that fail."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from motley.core.errors import TrainingError
from motley.core.keys import Key
from motley.core.part import Method, Part, compose
from motley.core.tasks import Assignment, Failed, Finished
from motley.core.types import Round, Tree, Updates
from motley.engine.executor import Executor, Own
from motley.fleet.fleet import Fleet
from motley.methods import make_method
from motley.runtime.launch import Run, executor_of
from motley.server.tally import Tally
from tests import tiny


class Poison(tiny.Watched):
    """An executor that makes the updates of some (client, round) pairs NaN."""

    def __init__(self, inner: Executor, bad: set[tuple[int, int]]) -> None:
        super().__init__(inner)
        self.bad = bad

    def submit(self, assignments: Sequence[Assignment], own: Own) -> Iterator[Finished | Failed]:
        bad = {task.id for task in assignments if (task.client, task.round) in self.bad}
        for done in super().submit(assignments, own):
            yield spoiled(done) if isinstance(done, Finished) and done.report.id in bad else done


def spoiled(done: Finished) -> Finished:
    return done._replace(report=done.report._replace(payload=done.report.payload * math.nan))


def poisoned(bad: set[tuple[int, int]], method: Method | None = None, **given: Any) -> Run:
    e = tiny.experiment(method, fleet=Fleet.ideal(6, Key.root(0)), **given)
    return Run(e, executor=Poison(executor_of(e), bad))


def test_an_update_that_is_not_finite_stops_the_run_with_a_sentence() -> None:
    with pytest.raises(TrainingError, match=r"update of client 4 in round 2 is not finite .* on_bad_update=drop"):
        poisoned({(4, 2)}, rounds=3, cohort=6).go()


def test_a_part_that_stumbles_over_such_an_update_is_not_blamed() -> None:
    def observe(s: Tree, rnd: Round, updates: Updates) -> Tree:
        assert bool(torch.isfinite(updates.delta).all()), "numbers, please"
        return s

    method = compose(make_method("fedavg"), Part("strict", observe=observe))
    with pytest.raises(TrainingError, match="update of client 4 in round 2 is not finite"):
        poisoned({(4, 2)}, method, rounds=3, cohort=6).go()


def test_the_training_loss_of_a_round_is_the_mean_over_samples_without_what_is_not_finite() -> None:
    losses = torch.tensor([2.0, math.nan, 4.0])
    tally = Tally(losses=list(zip(losses.unbind(), [1.0, 5.0, 3.0], strict=True)))
    assert tally.train_loss() == pytest.approx((2.0 * 1 + 4.0 * 3) / 4)
    assert Tally().train_loss() is None


def test_or_is_dropped_as_if_it_had_been_lost() -> None:
    bad, scaffold = {(4, 2), (1, 2)}, make_method("scaffold")
    dropped = poisoned(bad, scaffold, rounds=3, cohort=6, on_bad_update="drop").go()
    unlucky = Fleet.ideal(6, Key.root(0)).meets(fortune=tiny.Lost(*bad))
    expected = tiny.run(scaffold, fleet=unlucky, rounds=3, cohort=6)
    assert dropped.summary["model_sha256"] == expected.summary["model_sha256"]
    assert [(r.lost, r.arrived) for r in dropped.records] == [(r.lost, r.arrived) for r in expected.records]
    assert all(math.isfinite(r.train_loss or 0) for r in dropped.records)


def test_all_of_them_not_finite_leaves_the_model() -> None:
    run = poisoned({(client, 1) for client in range(6)}, rounds=1, cohort=2, on_bad_update="drop")
    before = run.model.clone()
    run.bare_rounds()
    assert torch.equal(run.model, before)


class Broken(tiny.Watched):
    """An executor whose tasks all fail, each by itself or all at once."""

    def __init__(self, inner: Executor, at_once: bool) -> None:
        super().__init__(inner)
        self.at_once = at_once

    def submit(self, assignments: Sequence[Assignment], own: Own) -> Iterator[Finished | Failed]:
        error = TrainingError("no electricity")
        if self.at_once:
            raise error
        yield from (Failed(task.id, error) for task in assignments)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_failing_executor_ends_the_run(at_once: bool) -> None:
    e = tiny.experiment()
    with pytest.raises(TrainingError, match="no electricity"):
        Run(e, executor=Broken(executor_of(e), at_once)).go()
