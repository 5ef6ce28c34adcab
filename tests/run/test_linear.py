"""The short step of linear models on a CPU against the loop executor, and who gets it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from motley.bench.cases import Case, case_named, make_data, make_jobs, make_training
from motley.core.keys import Key
from motley.run.executors import linear
from motley.run.executors.base import Job
from motley.run.executors.batched import Batched
from motley.run.executors.loop import Loop

CASE = replace(
    case_named("fedsae_logistic"), shape=(2, 3, 4), population=40, cohort=12, epochs=2.5, samples=25, classes=5
)


def prepared(case: Case) -> tuple[Any, Any, list[Job]]:
    data = make_data(case, Key.root(0))
    training = make_training(case, data, Key.root(1))
    return training, data, make_jobs(case, data, 0.1 * torch.randn(training.net.size), Key.root(2), 1)


def compare(training: Any, data: Any, jobs: list[Job]) -> None:
    made = Batched(training, data, "cpu")
    assert linear.fits(training, made.data)
    for ours, theirs in zip(made.run(jobs), Loop(training, data).run(jobs), strict=True):
        torch.testing.assert_close(ours.payload, theirs.payload, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-4, atol=1e-6)
        assert torch.equal(ours.trained, theirs.trained)
        assert ours.extras == theirs.extras == {}
    assert not made._traces.items, "nothing was traced"


@pytest.mark.parametrize("block", [1, linear.BLOCK_BYTES])
@pytest.mark.parametrize("power_law", [True, False])
def test_it_is_the_loop(power_law: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "BLOCK_BYTES", block)
    samples = CASE.samples if power_law else 20  # whole minibatches need no mask
    compare(*prepared(replace(CASE, power_law=power_law, samples=samples)))


def test_clients_with_starts_and_rates_of_their_own() -> None:
    training, data, jobs = prepared(CASE)
    rates = [job.facts._replace(lr=0.01 * (i + 1)) for i, job in enumerate(jobs)]
    compare(
        training,
        data,
        [job._replace(start=job.start + 0.01 * job.client, facts=f) for job, f in zip(jobs, rates, strict=True)],
    )


def test_large_logits_do_not_overflow() -> None:
    training, data, jobs = prepared(replace(CASE, lr=300.0))
    assert all(
        outcome.payload.isfinite().all() and outcome.loss.isfinite()
        for outcome in Batched(training, data, "cpu").run(jobs)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "sgd(momentum=0.5)"},
        {"optimizer": "sgd(weight_decay=0.01)"},
        {"method": "fedprox(mu=0.1)"},
        {"method": "scaffold"},
        {"model": "mlp(hidden=[4])"},
    ],
)
def test_everything_else_takes_the_general_path(change: dict[str, str]) -> None:
    training, data, _ = prepared(replace(CASE, **change))  # type: ignore[arg-type]
    assert not linear.fits(training, Batched(training, data, "cpu").data)


def test_samples_that_are_not_ready_take_the_general_path() -> None:
    training, data, _ = prepared(CASE)
    assert data.dataset.scaling is not None
    assert not linear.fits(training, data)
