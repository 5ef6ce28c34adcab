"""Which executor a run gets by itself."""

from __future__ import annotations

import pytest
import torch

from motley.core.part import Part, compose
from motley.core.stacking import stack_rows
from motley.engine import choice
from motley.runtime.experiment import Experiment, Given, prepare
from motley.runtime.recipe import load


def chosen(experiment: Experiment, **changes: object) -> str:
    settings = {"device": "cpu", "workers": 2, "cohort": 8, "rounds": 100, "epochs": 1.0, **changes}
    return choice.choose(experiment.site, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def small() -> Experiment:
    return prepare(load({"method": "scaffold", "model": "logistic"}))


def pretend(monkeypatch: pytest.MonkeyPatch, *, loop: float, batched: float, forks: bool) -> None:
    """Seconds per client-step of both executors, and whether worker processes may be started."""
    times = {"loop": loop, "batched": batched}
    monkeypatch.setattr(choice, "rehearse", lambda executor, site, width: times[executor.name] * choice.STEPS * width)
    monkeypatch.setattr(choice, "may_fork", lambda: forks)


def test_short_work_is_done_in_a_loop(small: Experiment) -> None:
    assert chosen(small, rounds=2) == "loop"  # really timed, with a method whose server sends something


def test_long_work_goes_to_the_pool_if_it_may(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, loop=0.1, batched=0.1, forks=True)
    assert chosen(small) == "pool"
    assert chosen(small, workers=1) == "loop"
    pretend(monkeypatch, loop=0.1, batched=0.1, forks=False)
    assert chosen(small) == "loop"


def test_batched_must_be_clearly_faster_than_all_workers(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, loop=0.1, batched=0.1 / (2 * choice.GAIN) * 1.01, forks=True)
    assert chosen(small) == "pool"
    pretend(monkeypatch, loop=0.1, batched=0.1 / (2 * choice.GAIN) * 0.99, forks=True)
    assert chosen(small) == "batched"


def test_parts_made_by_hand_stay_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = prepare(load({"model": "logistic"}), Given(method=compose(Part(name="mine", seam="step"))))
    pretend(monkeypatch, loop=0.1, batched=0.1, forks=True)
    assert chosen(by_hand) == "loop"


def test_rows_of_one_tensor_are_stacked_without_a_copy() -> None:
    whole = torch.arange(12.0).reshape(4, 3)
    rows = list(whole.unbind())
    assert stack_rows(rows).data_ptr() == whole.data_ptr()
    for some in (rows[1:3], rows[::2], rows[::-1], [rows[0], rows[2].clone()]):
        assert torch.equal(stack_rows(some), torch.stack(some))
