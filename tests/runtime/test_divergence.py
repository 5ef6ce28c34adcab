"""DC and DL: by hand, against a plain twin, and through a walk."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from motley.core.keys import fold_in, permutation
from motley.reproduce.results import compact
from motley.runtime import divergence
from motley.runtime.central_twin import train_centrally
from motley.runtime.divergence import mean_cosine_distance
from motley.runtime.experiment import prepare
from motley.runtime.launch import Run, launch, resume, run
from motley.runtime.recipe import load
from tests.protocol.world import events_of

BASE: dict[str, Any] = {
    "clients": 8,
    "cohort": 4,
    "rounds": 6,
    "epochs": 1.0,
    "model": "mlp(hidden=[12])",
    "diagnostics": ["dc", "dl"],
    "checkpoint_seconds": 0.0,
}


def test_eq_3_by_hand() -> None:
    """Angles 90, 45 and 45 degrees: 1 - cos is 1, 1 - 1/sqrt 2 twice."""
    vectors = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    assert mean_cosine_distance(vectors) == pytest.approx((1 + 2 * (1 - 0.5**0.5)) / 3)
    assert mean_cosine_distance(torch.ones(4, 3)) == pytest.approx(0.0, abs=1e-12)
    assert mean_cosine_distance(torch.zeros(2, 3)) == 1.0
    many = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    pairs = [1 - cosine_similarity(many[i], many[j], 0) for i in range(6) for j in range(i)]
    assert mean_cosine_distance(many) == pytest.approx(float(torch.stack(pairs).mean()), rel=1e-5)


def test_dl_grows_along_a_walk_and_falls_with_the_average() -> None:
    walked = run("digits", method="radfed(S=3)", **BASE)
    dl = [record.extra["dl"] for record in walked.records]
    assert dl[0] < min(dl[1:3])
    assert dl[3] < min(dl[1], dl[2], dl[4], dl[5])
    averaged = [record.extra["dl"] for record in run("digits", method="fedavg", **BASE).records]
    assert all(a < b for a, b in zip(averaged[1:], dl[1:], strict=True))
    assert averaged[0] == pytest.approx(dl[0])


def test_dc_against_a_plain_twin() -> None:
    """The twin in torch.optim, on the union of the cohort's samples, minibatches four times as large."""
    e = prepare(load("digits", {**BASE, "rounds": 2, "method": "fedavg"}))
    made = Run(e)
    events = events_of(made)
    result = made.go()
    sent = [event for event in events if event.what == "dispatch"]
    cohorts = [[event.client for event in sent if event.round == number] for number in (1, 2)]
    module = copy.deepcopy(e.net.module)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(e.net.layout.unflatten(e.net.initial())[name])
    optimizer = torch.optim.SGD(module.parameters(), lr=e.recipe.lr)
    for number, cohort in enumerate(cohorts, 1):
        rows = torch.from_numpy(np.concatenate([e.data.partition[i] for i in cohort]))
        x, y = e.dataset.inputs(e.dataset.x[rows]), e.dataset.y[rows]
        order = permutation(fold_in(e.key.fold("dc", number).tensor(), 0), len(y))
        for batch in order.split(4 * e.recipe.batch_size):
            optimizer.zero_grad()
            cross_entropy(module(x[batch]), y[batch]).backward()
            optimizer.step()
    twin = e.net.layout.flatten({name: p.detach() for name, p in module.named_parameters()})
    expected = float((result.params - twin).norm() / twin.norm())
    assert result.records[-1].extra["dc"] == pytest.approx(expected, rel=1e-4)


def test_they_change_nothing_and_survive_a_checkpoint(tmp_path: Path) -> None:
    whole = run("digits", method="radfed(S=4)", **BASE)
    plain = run("digits", method="radfed(S=4)", **{**BASE, "diagnostics": []})
    assert whole.summary["model_sha256"] == plain.summary["model_sha256"]
    launch(load("digits", {**BASE, "method": "radfed(S=4)", "rounds": 3}), tmp_path / "cut")
    continued = resume(tmp_path / "cut", changes=["rounds=6"])
    for a, b in zip(whole.records, continued.records, strict=True):
        assert a.extra["dc"] == b.extra["dc"]
        assert a.extra["dl"] == b.extra["dl"]


def test_a_twin_that_diverges_stops_telling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = iter(range(1, 7))

    def lost(*given: Any, **options: Any) -> torch.Tensor:
        return train_centrally(*given, **options) * (float("inf") if next(rounds) == 3 else 1.0)

    monkeypatch.setattr(divergence, "train_centrally", lost)
    result = launch(load("digits", {**BASE, "method": "fedavg"}), tmp_path / "lost")
    told = [record.extra["dc"] for record in result.records]
    assert [value is None for value in told] == [False, False, True, True, True, True]
    assert "NaN" not in (tmp_path / "lost" / "rounds.jsonl").read_text()
    kept = compact("r", "c", False, result, "cpu", {}).extra["dc"]
    assert kept == [pytest.approx(told[0], rel=1e-5), pytest.approx(told[1], rel=1e-5), None, None, None, None]
