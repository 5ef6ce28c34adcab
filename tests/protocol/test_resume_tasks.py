"""Runs that are stopped with tasks in the air go on to the same result; executors see the same events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from motley.core.part import compose
from motley.methods import make_method
from motley.runtime.experiment import Given, prepare
from motley.runtime.launch import Run, launch, resume
from motley.runtime.listeners import Listener
from motley.runtime.recipe import load
from motley.runtime.records import Record
from tests.protocol.world import events_of

WORLD: dict[str, Any] = {
    "fleet": "uniform_spread+affordable(low=1, high=3)+loss(probability=0.1)+delay(probability=0.4, maximum_rounds=3)",
    "clients": 12,
    "cohort": 5,
    "rounds": 5,
    "epochs": 2,
    "model": "mlp(hidden=[8])",
    "checkpoint_seconds": 0,
}
METHODS = (
    "ama_async",
    "fedasync(concurrency=4)",
    "fedbuff(buffer=3, concurrency=6)",
    "safa(lag=2)",
    "fedat(tiers=3)",
    "fedsae_ira(al=4)",
    "freezefl(restart=2)+partial_work",
    "oort+partial_work",
)


class StoppedError(Exception):
    """Stands for a killed process."""


def rows(records: list[Record]) -> list[dict[str, Any]]:
    return [{key: value for key, value in vars(record).items() if key != "wall_time"} for record in records]


@pytest.mark.parametrize("method", METHODS)
def test_a_stopped_run_goes_on_to_the_same_model(method: str, tmp_path: Path) -> None:
    recipe = load("digits", {**WORLD, "method": method})
    whole = launch(recipe, tmp_path / "whole")

    def stop(record: Record) -> None:
        if record.round == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        launch(recipe, tmp_path / "stopped", [stop])
    again = resume(tmp_path / "stopped")
    assert again.summary["model_sha256"] == whole.summary["model_sha256"]
    assert rows(again.records) == rows(whole.records)
    assert again.summary["fairness"] == whole.summary["fairness"]


class UnderWay(Listener):
    """How many tasks are under way between two rounds."""

    def __init__(self) -> None:
        self.left: list[int] = []

    def round_ended(self, run: Run, record: Record) -> None:
        self.left.append(len(run.fed.tasks))


@pytest.mark.parametrize("method", ["ama_async", "fedasync", "fedbuff(buffer=3)", "safa", "fedat(tiers=3)"])
def test_something_was_in_the_air(method: str) -> None:
    watch = UnderWay()
    launch(load("digits", {**WORLD, "method": method}), listeners=[watch])
    assert max(watch.left[:-1]) > 0


@pytest.mark.parametrize(
    ("method", "executors"),
    [
        ("ama_async", ("loop", "batched")),
        ("fedasync(concurrency=4)", ("loop", "batched", "pool")),
        ("fedbuff(buffer=3, concurrency=6)", ("loop", "batched", "pool")),
        ("safa(lag=2)", ("loop", "batched", "pool")),
        ("fedat(tiers=3)", ("loop", "batched", "pool")),
        ("fedsae_fassa(al=2)", ("loop", "batched", "pool")),
        ("freezefl+partial_work", ("loop", "batched", "pool")),
    ],
)
def test_executors_see_the_same_events(method: str, executors: tuple[str, ...]) -> None:
    results = []
    for executor in executors:
        recipe = load("digits", {**WORLD, "method": method, "executor": executor, "workers": 1, "rounds": 4})
        run = Run(prepare(recipe, Given(method=compose(make_method(method)))))
        seen = events_of(run)
        results.append((run.go(), [event._replace(facts={}) for event in seen]))
    (loop, loop_trace), *others = results
    for result, trace in others:
        assert trace == loop_trace
        assert torch.allclose(result.params, loop.params, atol=1e-5)
        if result.summary["executor"] == "pool":
            assert result.summary["model_sha256"] == loop.summary["model_sha256"]
