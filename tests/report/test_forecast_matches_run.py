"""What the rehearsal says is what a simulated run then does."""

from __future__ import annotations

import numpy as np
import pytest

from motley.nets.cost import flops
from motley.report.description import describe_experiment
from motley.report.forecast import Work, forecast
from motley.runtime.experiment import prepare
from motley.runtime.launch import run
from motley.runtime.recipe import load

WORLD = (
    "ideal(flops=1e7, bandwidth=1e5)+freezefl+affordable(low=5, high=10)+delay(seconds=1, probability=0.5)"
    "+bernoulli(p=0.7)+loss"
)


@pytest.mark.parametrize("deadline", ["none", "4.0"])
def test_clock_and_participants_agree(deadline: str) -> None:
    recipe = load(
        "digits",
        [
            "method=fedavg",
            "clients=8",
            "cohort=8",
            "rounds=4",
            f"fleet={WORLD}",
            f"deadline={deadline}",
            "executor=loop",
        ],
    )
    experiment = prepare(recipe)
    work = Work(experiment.data.sizes, recipe.epochs, flops(experiment.cost), 4 * experiment.net.size, recipe.deadline)
    expected = forecast(experiment.fleet, work, cohort=8, rounds=4, key=experiment.key)
    records = run(recipe).records
    np.testing.assert_allclose([r.virtual_time for r in records], np.cumsum(expected.round_times), rtol=1e-6)
    assert [r.participants for r in records] == [len(ids) for ids in expected.cohorts]


def test_fedavg_under_fedsae_loses_about_97_percent() -> None:
    recipe = load(
        "digits",
        [
            "method=fedavg", "clients=100", "cohort=30", "rounds=60", "epochs=15", "fleet=fedsae", "model=logistic",
            "partition=iid", "evaluate_every=60", "executor=loop",
        ],
    )  # fmt: skip
    records = run(recipe).records
    rate = 1 - sum(r.arrived for r in records) / sum(r.participants for r in records)
    assert rate == pytest.approx(0.967, abs=0.015)
    assert rate == pytest.approx(describe_experiment(prepare(recipe)).straggler_rate, abs=0.015)
