"""Importance sampling: scores, their average at the server, and the draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from motley.client.trainer import measured, new_client
from motley.core.errors import InputError
from motley.core.keys import Key
from motley.core.part import Part, compose
from motley.core.types import Data, Facts, Pool, Round, Tree, Updates
from motley.methods import make_method
from motley.runtime.experiment import Given, prepare
from motley.runtime.launch import Run, run
from motley.runtime.recipe import load
from motley.server.importance import draw, importance
from tests.tiny import filled


def test_draw_follows_the_scores() -> None:
    score = np.array([1.0, 2.0, 3.0, 4.0])
    first = np.zeros(4)
    pairs = np.zeros((4, 4))
    rng = Key.root(3).generator()
    n = 20_000
    for _ in range(n):
        a, b = draw(score, 2, 0.0, rng)
        first[a] += 1
        pairs[a, b] += 1
    np.testing.assert_allclose(first / n, score / 10, atol=0.015)
    expected = score[3] / 10 * score[2] / 6  # 3 first, then 2 among the rest
    assert pairs[3, 2] / n == pytest.approx(expected, abs=0.015)


def test_floor_and_zero_scores() -> None:
    rng = Key.root(4).generator()
    score = np.array([0.0, 0.0, 1.0])
    assert {int(draw(score, 1, 0.0, rng)[0]) for _ in range(200)} == {2}
    assert sorted(draw(score, 3, 0.0, rng).tolist()) == [0, 1, 2]
    hits = np.bincount([draw(score, 1, 0.6, rng)[0] for _ in range(10_000)], minlength=3) / 10_000
    np.testing.assert_allclose(hits, [0.2, 0.2, 0.6], atol=0.02)


def test_without_any_score_every_pair_is_as_likely() -> None:
    rng = Key.root(5).generator()
    pairs = np.zeros((3, 3))
    for _ in range(6_000):
        a, b = draw(np.zeros(3), 2, 0.0, rng)
        pairs[a, b] += 1
    np.testing.assert_allclose(pairs / 6_000, (1 - np.eye(3)) / 6, atol=0.02)


def test_score_is_the_mean_over_minibatches() -> None:
    e = prepare(load("digits", {"method": "radfedi", "batch_size": 4, "model": "mlp(hidden=[5])"}))
    whole = e.data.client(0)
    x, y = whole.x[:10], whole.y[:10]
    c = new_client(e.training, e.net.initial(), Facts(*(torch.ones(()) for _ in Facts._fields)), e.key.tensor())
    norms = []
    for rows in (slice(0, 4), slice(4, 8), slice(8, 10)):
        flat = c.params.clone().requires_grad_()
        torch.nn.functional.cross_entropy(e.net(flat, x[rows]).logits, y[rows]).backward()
        assert flat.grad is not None
        norms.append(float(flat.grad.square().sum()))
    with torch.no_grad():
        found = measured(e.training, c, Data(x, y)).notes["importance"]
        assert float(found) == pytest.approx(sum(norms) / 3, rel=1e-5)


class Told:
    """What clients report, in the order in which the server learns of it."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, float]] = []
        self.part = Part(name="told", seam="select", observe=self.observe)

    def observe(self, s: Tree, rnd: Round, updates: Updates) -> Tree:
        self.rows += zip(updates.ids.tolist(), updates.extras["importance"].tolist(), strict=True)
        return s


def _run(method: str, **changes: Any) -> tuple[Run, list[tuple[int, float]]]:
    told = Told()
    run = Run(prepare(load("digits", changes), Given(method=compose(make_method(method), told.part))))
    run.go()
    return run, told.rows


def _scores(executor: str) -> dict[int, float]:
    """What clients of unequal sizes, some of them not whole minibatches, report in one round."""
    recipe = {"partition": "dirichlet(alpha=0.5)", "batch_size": 7, "rounds": 1, "cohort": 20, "lr": 0.3}
    return dict(_run("importance", **recipe, executor=executor, model="mlp(hidden=[5])")[1])


def test_clients_measured_together_report_what_each_reports_alone() -> None:
    alone, together = _scores("loop"), _scores("batched")
    assert len(set(alone.values())) == 20  # enough that the width is rounded up while they run out
    assert together == pytest.approx(alone, rel=1e-4)


def test_server_averages_scores() -> None:
    run, told = _run("importance(gamma=0.8)", rounds=3, cohort=5)
    expected = torch.ones(20)
    for client, new in told:
        expected[client] = 0.2 * expected[client] + 0.8 * new
    assert len(told) == 15
    torch.testing.assert_close(run.fed.ledger.server.state["importance"]["score"], expected)


def test_unknown_clients_count_as_the_mean() -> None:
    hooks = importance(initial=None)
    state = {"score": torch.tensor([1.0, 5.0, 1.0, 3.0]), "known": torch.tensor([0.0, 1.0, 0.0, 1.0])}
    pool = Pool(torch.arange(4), torch.ones(4))
    first = np.zeros(4)
    for i in range(4000):
        first[int(filled(hooks.select)(state, Round(1, Key.root(i), 1, 0.0), pool)[0])] += 1
    np.testing.assert_allclose(first / 4000, np.array([4, 5, 4, 3]) / 16, atol=0.03)


def test_floor_one_is_uniform() -> None:
    a = run("digits", method="fedavg", rounds=3)
    b = run("digits", method="fedavg+importance(floor=1.0)", rounds=3)
    assert a.summary["model_sha256"] == b.summary["model_sha256"]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("radfedi(gamma=0)", "'radfedi' has gamma=0; it must be a number above 0 and up to 1"),
        ("radfedi(floor=2)", "'radfedi' has floor=2; it must be a number from 0 to 1"),
        ("importance(initial=0)", "'importance' has initial=0; it must be a number above 0 or none"),
        ("radfeda(optimizer='adm')", "did you mean 'adam'"),
    ],
)
def test_bad_settings_get_a_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make_method(spec)
