"""Schedules of the learning rate, by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import motley
from motley.core.errors import InputError, RecipeError, StateError
from motley.core.learning_rates import LearningRate, factors, needs_the_end
from motley.runtime.experiment import prepare
from motley.runtime.recipe import load
from tests.tiny import dataset

BASE: dict[str, Any] = {
    "data": "digits", "clients": 6, "cohort": 2, "rounds": 4, "model": "mlp(hidden=[8])", "executor": "loop",
}  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "expected"),  # factors of rounds 1 to 4 of 4
    [
        ("cosine", [1.0, 0.5 + 0.5 * math.sqrt(0.5), 0.5, 0.5 - 0.5 * math.sqrt(0.5)]),
        ("cosine(rounds=2, final=0.2)", [1.0, 0.6, 0.2, 0.2]),
        ("linear", [1.0, 0.75, 0.5, 0.25]),
        ("linear(rounds=2, final=0.5)", [1.0, 0.75, 0.5, 0.5]),
        ("steps(at=[2, 4], factor=0.5)", [1.0, 0.5, 0.5, 0.25]),
        ("warm_up(rounds=2)", [0.5, 1.0, 1.0, 1.0]),
        ("warm_up(rounds=2)+linear", [0.5, 0.75, 0.5, 0.25]),
    ],
)
def test_by_hand(spec: str, expected: list[float]) -> None:
    rate = LearningRate(0.1, factors(spec, 4))
    assert [rate(t) for t in (1, 2, 3, 4)] == pytest.approx([0.1 * value for value in expected])


def test_it_is_what_clients_train_with() -> None:
    asked = {**BASE, "lr": 0.2, "lr_decay": 0.5}
    experiment = prepare(load({**asked, "lr_schedule": "steps(at=[3])"}))
    assert [float(experiment.learning_rate(t)) for t in (1, 2, 3)] == pytest.approx([0.2, 0.1, 0.005])  # type: ignore[operator]
    plain = motley.run(asked)
    assert motley.run(asked, lr_schedule="steps(at=[5])").summary["model_sha256"] == plain.summary["model_sha256"]
    assert motley.run(asked, lr_schedule="steps(at=[4])").summary["model_sha256"] != plain.summary["model_sha256"]


def test_any_function_of_the_round(tmp_path: Path) -> None:
    data = dataset()
    asked: dict[str, Any] = {"model": nn.Linear(9, 4), "data": data, "clients": 5, "cohort": 3, "rounds": 4}

    def rate(t: int) -> float:
        return 0.3 / t

    found = motley.train(**asked, lr=rate, folder=tmp_path / "run")
    same = motley.train(**asked, lr=0.3, lr_schedule="warm_up(rounds=1)")
    assert found.summary["model_sha256"] != same.summary["model_sha256"]
    one = motley.train(**{**asked, "rounds": 1}, lr=rate).summary["model_sha256"]
    assert one == motley.train(**{**asked, "rounds": 1}, lr=0.3).summary["model_sha256"]
    with pytest.raises(StateError, match=r"given its lr in Python; give the same again: motley\.resume"):
        motley.resume(tmp_path / "run", data=prepare_data(data), net=motley.Network(nn.Linear(9, 4)))


def prepare_data(data: motley.Dataset) -> motley.FederatedData:
    from motley.runtime.experiment import share_out

    return share_out(load({"clients": 5, "cohort": 3, "data": "given"}), data)


def test_a_rate_that_is_not_positive_is_told() -> None:
    with pytest.raises(InputError, match="The learning rate of round 3 is 0; a schedule must stay above 0"):
        motley.train(nn.Linear(9, 4), dataset(), clients=5, cohort=3, rounds=4, lr=lambda t: 0.1 * (3 - t))
    with pytest.raises(InputError, match="round 4 is 0"):
        motley.run(BASE, lr_schedule="linear(rounds=2)")
    with pytest.raises(InputError, match=r"needs rounds from 1 on, at=\[30, 60\], not \[0\]"):
        motley.run(BASE, lr_schedule="steps(at=[0])")
    with pytest.raises(InputError, match="did you mean 'cosine'"):
        motley.run(BASE, lr_schedule="cosin")


def test_a_schedule_that_needs_the_end_is_not_extended(tmp_path: Path) -> None:
    assert needs_the_end("warm_up+cosine")
    assert not needs_the_end("warm_up(rounds=2)+cosine(rounds=9)+steps(at=[2])")
    motley.run(BASE, tmp_path / "bound", lr_schedule="cosine")
    with pytest.raises(RecipeError, match="falls over its 4 rounds"):
        motley.resume(tmp_path / "bound", rounds=8)
    motley.run(BASE, tmp_path / "free", lr_schedule="cosine(rounds=20)")
    longer = motley.resume(tmp_path / "free", rounds=6)
    whole = motley.run(BASE, rounds=6, lr_schedule="cosine(rounds=20)")
    assert longer.summary["model_sha256"] == whole.summary["model_sha256"]
