"""The device of an executor: which one it is, and how products are taken on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from motley.core.errors import InputError
from motley.data.dataset import Scaling
from motley.engine.batched.together import Batched
from motley.engine.device import moved, pick, precision
from motley.methods import make_method
from motley.runtime.experiment import Experiment
from motley.runtime.launch import Run
from tests import tiny
from tests.engine.work import AsOnGpu, Replayed, reports, tasks_of


def allowed() -> tuple[bool, bool]:
    """Whether products and convolutions may be taken as TF32."""
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture(params=[(False, True), (True, False)])
def own(request: pytest.FixtureRequest) -> Iterator[tuple[bool, bool]]:
    """What the process has set for itself."""
    before = allowed()
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = request.param
    yield request.param
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize(("name", "inside"), [("float32", False), ("tf32", True), ("bf16", True)])
def test_precision_is_set_inside_a_block_alone(own: tuple[bool, bool], name: str, inside: bool) -> None:
    with precision(name):
        assert allowed() == (inside, inside)
    assert allowed() == own
    with pytest.raises(ZeroDivisionError), precision(name):
        raise ZeroDivisionError
    assert allowed() == own


def with_precision(name: str) -> Experiment:
    e = tiny.experiment(make_method("fedavg"))
    return replace(e, training=replace(e.training, precision=name))


class Noting(Replayed):
    """Notes how products are taken whenever a step runs."""

    seen: list[tuple[bool, bool]]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        type(self).seen = []

    def __call__(self) -> None:
        type(self).seen.append(allowed())
        super().__call__()


@pytest.mark.parametrize(("name", "inside"), [("float32", False), ("tf32", True)])
def test_an_executor_sets_precision_while_it_trains(own: tuple[bool, bool], name: str, inside: bool) -> None:
    e = with_precision(name)
    checked: list[tuple[bool, bool]] = []
    lane = AsOnGpu(e.site, Noting, lambda: bool(checked.append(allowed())) or True)
    assert checked == [(inside, inside)], "kernels are compared as they will run"
    assert allowed() == own, "making it changes nothing"
    reports(Batched(e.site, "cpu", lane), tasks_of(e))
    assert set(Noting.seen) == {(inside, inside)}
    assert allowed() == own


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_leaves_the_precision_of_the_process_alone(own: tuple[bool, bool], fails: bool) -> None:
    e = with_precision("tf32")

    class Broken(Replayed):
        def __call__(self) -> None:
            raise ZeroDivisionError("a step failed")

    run = Run(e, executor=Batched(e.site, "cpu", AsOnGpu(e.site, Broken if fails else Replayed)))
    assert allowed() == own
    if fails:
        with pytest.raises(ZeroDivisionError, match="a step failed"):
            run.go()
    else:
        assert run.go().records
    assert allowed() == own


@pytest.mark.parametrize(("device", "sentence"), [("tpu", "no device 'tpu'"), ("cuda:1", "finds no CUDA device")])
def test_a_device_that_is_not_there_is_refused(device: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick("auto") == pick("cpu") == "cpu"
    with pytest.raises(InputError, match=sentence):
        pick(device)


def test_samples_are_scaled_beforehand_and_what_was_given_stays() -> None:
    data = tiny.data()
    halved = replace(data, dataset=replace(data.dataset, scaling=Scaling(0.5)))
    before = data.dataset.x.clone()
    placed = moved(halved, torch.device("cpu"))
    assert placed.dataset.scaling is None
    assert torch.equal(placed.dataset.x, before / 2)
    assert torch.equal(data.dataset.x, before)
