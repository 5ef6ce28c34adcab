"""Diagnostics: by hand, beside a run that they do not change."""

from __future__ import annotations

import statistics

import pytest
import torch

from motley.core.errors import UnknownNameError
from motley.runtime.diagnostics import Diagnostics, Moment, stability, weight_diversity
from motley.runtime.launch import Run
from tests.equations.small import small_experiment

ALL = ["diversity", "per_class", "stability", "centralised", "fine_tuned"]


def test_weight_diversity_by_hand() -> None:
    """Eq. 24: (0, 0), (2, 0), (1, 3) around (1, 1): 2, 2 and 4."""
    assert weight_diversity(torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0]])) == pytest.approx(8 / 3)


def test_stability_is_the_variance_in_percent_of_the_last_rounds() -> None:
    values = [0.9, 0.1, 0.5, 0.52]
    assert stability(values, 2) == pytest.approx(2.0)
    assert stability(values) == pytest.approx(statistics.variance([90, 10, 50, 52]))
    assert stability([0.5]) is None


def test_all_diagnostics_of_a_run() -> None:
    result = Run(small_experiment("fedavg", diagnostics=ALL)).go()
    first, last = result.records[0].extra, result.records[-1].extra
    assert first["diversity"] > 0
    assert len(last["per_class"]) == 4
    assert "stability" not in first
    assert last["stability"] == pytest.approx(result.summary["stability"])
    assert 0 < last["centralised"] < 2
    assert "fine_tuned" not in first
    assert 0 <= last["personal"] <= last["fine_tuned"] <= 1
    plain = Run(small_experiment("fedavg")).go()
    assert torch.equal(plain.params, result.params)
    assert plain.records[-1].extra == {}


def test_diversity_of_models_that_all_stand_still_is_zero() -> None:
    result = Run(small_experiment("naive_fl", limited=(0, 1, 2, 3), diagnostics=["diversity"])).go()
    assert result.records[0].extra["diversity"] == 0.0


def test_the_central_twin_of_one_client_with_everything_is_near() -> None:
    """The twin moves, and is rebuilt alike when its memory is lost."""
    made = Run(small_experiment("fedavg", diagnostics=["centralised"]))
    result = made.go()
    number, twin = made.measures["centralised"]
    moment = Moment(made.experiment, 3, result.params, None, None, [])
    again = Diagnostics(["centralised"]).measure(moment)
    assert number == 3
    assert torch.equal(moment.memory["centralised"][1], twin)
    assert again["centralised"] == made.records[-1].extra["centralised"]


def test_an_unknown_diagnostic_is_refused_before_training() -> None:
    with pytest.raises(UnknownNameError, match="diversity"):
        Run(small_experiment("fedavg", diagnostics=["diversty"]))
