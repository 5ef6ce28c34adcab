"""What an agent sends is looked at before anything is done with it: lies are refused with a sentence."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from motley.core import codec
from motley.core.codec import Content
from motley.core.keys import Key
from motley.core.tasks import Assignment, Weights
from motley.deploy.core import server_site
from motley.deploy.messages import Blob, Task
from motley.deploy.report_form import ReportError, ReportForm, report_from, report_tree
from motley.engine.loop import run_task
from motley.runtime.experiment import prepare
from tests.deploy.field import tiny

E = prepare(tiny(method="scaffold", model="mlp(hidden=[8])"))
LAYOUT = E.net.layout
DOWN = Content({"control_variates": torch.zeros(LAYOUT.size)})
A = Assignment("1.0", 0, 1, Weights(E.net.initial()), DOWN, {}, 1.0, 1.0, False, 0.1, Key.root(0))
TASK = Task("run", 0, 1, "1.0", Blob("a" * 64, 1), {}, 1.0, 1.0, False, 0.1, "00")
FORM = ReportForm.of(server_site(E), A)


def honest() -> dict[str, Any]:
    done = run_task(E.site, A, E.site.facts([A]).row(0), None)
    tree: dict[str, Any] = codec.loads(codec.dumps(report_tree(done.report, LAYOUT)))
    return tree


def changed(**new: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda tree: {**tree, **new}


LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no table": (lambda tree: [1, 2], "parts of a report"),
    "a part is missing": (lambda tree: {k: v for k, v in tree.items() if k != "loss"}, "parts of a report"),
    "a part too many": (changed(more=1), "parts of a report"),
    "another shape": (changed(payload=torch.zeros(3)), "its change of the weights"),
    "another type": (lambda tree: {**tree, "payload": tree["payload"].double()}, "float64"),
    "no tensor": (changed(payload="weights"), "str, not float32"),
    "not a number": (lambda tree: {**tree, "payload": tree["payload"] * float("nan")}, "not finite"),
    "infinite": (lambda tree: {**tree, "payload": tree["payload"] + float("inf")}, "not finite"),
    "layers told wrongly": (lambda tree: {**tree, "trained": tree["trained"] * 0.5}, "zeros and ones"),
    "layers without a change": (lambda tree: {**tree, "trained": tree["trained"] * 0}, "its change of the weights"),
    "extras of another method": (changed(extras={"other": torch.zeros(1)}), "another shape than this method's"),
    "extras that are not finite": (
        lambda tree: {**tree, "extras": {k: v * float("nan") for k, v in tree["extras"].items()}},
        "not finite",
    ),
    "more samples than there are": (changed(n=1e30), "cannot be"),
    "no samples": (changed(n=0), "cannot be"),
    "fewer than none": (changed(n=-5.0), "cannot be"),
    "half a step": (changed(steps=1.5), "cannot be"),
    "a model that stays, unasked": (changed(payload={"held": "a" * 64, "size": 1}), "no change of the weights"),
    "a width nobody has": (changed(width=0.5), "another width"),
}


def test_an_honest_report_is_read() -> None:
    done = run_task(E.site, A, E.site.facts([A]).row(0), None)
    read = FORM.read(honest(), TASK)
    assert torch.equal(read.payload, done.report.payload)
    assert (read.n, read.steps, read.epochs) == (done.report.n, done.report.steps, done.report.epochs)


@pytest.mark.parametrize("name", LIES)
def test_lies_are_refused(name: str) -> None:
    lie, sentence = LIES[name]
    with pytest.raises(ReportError, match=sentence):
        FORM.read(lie(honest()), TASK)


def test_layers_that_were_not_trained_are_not_sent() -> None:
    report = run_task(E.site, A, E.site.facts([A]).row(0), None).report
    trained = report.trained.clone()
    trained[0] = 0
    frozen = report._replace(trained=trained, payload=report.payload * LAYOUT.expand(trained))
    tree = report_tree(frozen, LAYOUT)
    assert len(tree["payload"]) < LAYOUT.size
    assert torch.equal(report_from(tree, LAYOUT, 0).payload, frozen.payload)


GOOD = codec.dumps(report_tree(run_task(E.site, A, E.site.facts([A]).row(0), None).report, LAYOUT))


@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=12))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_bytes_are_refused_or_harmless(where: int, what: bytes) -> None:
    damaged = GOOD[:where] + what + GOOD[where + len(what) :]
    try:
        report = FORM.read(codec.loads(damaged), TASK)
    except ValueError:
        return
    assert report.payload.shape == (LAYOUT.size,)
    assert bool(torch.isfinite(report.payload).all())


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_any_header_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError):
        codec.loads(struct.pack("<Q", len(header)) + header)
