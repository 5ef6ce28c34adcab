"""The short step of linear models on a CPU against the loop executor, and who gets it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from motley.bench.cases import Case, case_named, make_data, make_site, make_tasks
from motley.client.problems import Classification
from motley.client.site import Site
from motley.core.keys import Key
from motley.core.tasks import Assignment, Weights
from motley.engine.batched import closed_form
from motley.engine.batched.together import Batched
from motley.engine.device import moved
from motley.engine.loop import Loop
from tests.engine.work import OnCpu, reports

CASE = replace(
    case_named("fedsae_logistic"), shape=(2, 3, 4), population=40, cohort=12, epochs=2.5, samples=25, classes=5
)


def prepared(case: Case) -> tuple[Site, list[Assignment]]:
    site = make_site(case, make_data(case, Key.root(0)), Key.root(1))
    return site, make_tasks(case, Weights(0.1 * torch.randn(site.training.net.size)), Key.root(2), 1)


def fits(site: Site) -> bool:
    """Whether the executor, which has the samples ready, takes the short step."""
    return closed_form.fits(site.training, moved(site.data, torch.device("cpu")))


def compare(site: Site, tasks: list[Assignment]) -> None:
    lane = OnCpu(site)
    assert fits(site)
    for ours, theirs in zip(reports(Batched(site, "cpu", lane), tasks), reports(Loop(site), tasks), strict=True):
        torch.testing.assert_close(ours.payload, theirs.payload, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-4, atol=1e-6)
        assert torch.equal(ours.trained, theirs.trained)
        assert ours.extras == theirs.extras == {}
    assert not lane.traced, "nothing was traced"


@pytest.mark.parametrize("block", [1, closed_form.BLOCK_BYTES])
@pytest.mark.parametrize("power_law", [True, False])
def test_it_is_the_loop(power_law: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_form, "BLOCK_BYTES", block)
    samples = CASE.samples if power_law else 20  # whole minibatches need no mask
    compare(*prepared(replace(CASE, power_law=power_law, samples=samples)))


def test_clients_with_starts_and_rates_of_their_own() -> None:
    site, tasks = prepared(CASE)
    compare(
        site,
        [
            a._replace(start=Weights(a.start.value + 0.01 * a.client), lr=0.01 * (i + 1))
            for i, a in enumerate(tasks)
        ],
    )  # fmt: skip


def test_large_logits_do_not_overflow() -> None:
    site, tasks = prepared(replace(CASE, lr=300.0))
    for report in reports(Batched(site, "cpu"), tasks):
        assert report.payload.isfinite().all()
        assert report.loss.isfinite()


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
def test_everything_else_takes_the_general_path(change: dict[str, Any]) -> None:
    site, _ = prepared(CASE)
    assert fits(site)
    site, _ = prepared(replace(CASE, **change))
    assert not fits(site)


def test_samples_that_are_not_ready_take_the_general_path() -> None:
    site, _ = prepared(CASE)
    assert site.data.dataset.scaling is not None
    assert not closed_form.fits(site.training, site.data)


class Doubled(Classification):
    """Another problem than the one whose gradient is known."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return 2.0 * super().losses(outputs, y)


def test_another_problem_takes_the_general_path() -> None:
    site, _ = prepared(CASE)
    assert not fits(replace(site, training=replace(site.training, problem=Doubled())))
