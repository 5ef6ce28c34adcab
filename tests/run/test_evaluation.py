"""Scores against scikit-learn."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch.nn.functional import softmax

from motley.run.evaluation import area_under_curve, evaluate, scores
from tests import tiny


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_scores_are_those_of_scikit_learn(seed: int, n_classes: int) -> None:
    from sklearn import metrics

    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, max(2, n_classes - seed), (83,), generator=generator)  # some classes may be absent
    logits = torch.randn(83, n_classes, generator=generator).mul(2).round()  # many ties
    logits[torch.arange(83), y] += 1.0
    found, guess = scores(logits, y), logits.argmax(1)
    assert found.accuracy == pytest.approx(metrics.accuracy_score(y, guess))
    assert found.macro_f1 == pytest.approx(metrics.f1_score(y, guess, average="macro"))
    probabilities = softmax(logits.double(), 1)
    assert found.loss == pytest.approx(metrics.log_loss(y, probabilities, labels=range(n_classes)), rel=1e-5)
    if n_classes == 2:
        assert found.auc == pytest.approx(metrics.roc_auc_score(y, (logits[:, 1] - logits[:, 0])))
    else:
        assert found.auc is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recall = metrics.recall_score(y, guess, average=None, labels=range(n_classes))
    for c in range(n_classes):
        if (y == c).any():
            assert found.per_class[c] == pytest.approx(recall[c])
        else:
            assert math.isnan(found.per_class[c])


def test_a_class_that_is_neither_there_nor_guessed_does_not_count() -> None:
    """F1 of class 0: 2 * 1 / (2 + 1), of class 1: 2 * 1 / (1 + 2)."""
    guess = torch.tensor([0, 1, 1])
    found = scores(torch.eye(5)[guess], torch.tensor([0, 0, 1]))
    assert found.macro_f1 == pytest.approx(2 / 3)
    assert [math.isnan(value) for value in found.per_class] == [False, False, True, True, True]


def test_auc_by_hand() -> None:
    """Pairs (positive, negative): 3 of 4 in order, one tie counts half."""
    assert area_under_curve(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1])) == 3.5 / 4
    assert area_under_curve(torch.ones(4), torch.tensor([0, 1, 0, 1])) == 0.5
    assert area_under_curve(torch.ones(3), torch.ones(3, dtype=torch.int64)) is None


def test_evaluating_in_pieces_changes_nothing() -> None:
    from motley.run.evaluation import predict

    made = tiny.experiment()
    params = made.net.initial()
    whole = predict(made.net, params, made.dataset, made.dataset.test_x)
    pieces = predict(made.net, params, made.dataset, made.dataset.test_x, batch_size=7)
    assert torch.allclose(whole, pieces, atol=1e-6)
    assert evaluate(made.net, params, made.dataset).accuracy == pytest.approx(
        float((whole.argmax(1) == made.dataset.test_y).float().mean())
    )


def test_evaluation_at_a_chosen_frequency_and_always_at_the_end() -> None:
    result = tiny.run(rounds=5, evaluate_every=3)
    assert [record.accuracy is not None for record in result.records] == [False, False, True, False, True]
    assert result.summary["rounds"] == 5
    assert result.summary["accuracy"] == result.records[-1].accuracy


def test_inputs_made_ready_once_give_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    from motley.core.keys import Key
    from motley.data.datasets import load
    from motley.nets.zoo import build
    from motley.run import runner

    digits = load("digits")
    net = build("logistic", digits.input_shape, digits.n_classes, 0, Key.root(0))
    ready = runner.judged_on(torch.device("cpu"), digits)
    assert ready.test_x.dtype == torch.float32
    assert ready.scaling is None
    assert evaluate(net, net.initial(), ready) == evaluate(net, net.initial(), digits)
    monkeypatch.setattr(runner, "READY_BYTES", 10)
    assert runner.judged_on(torch.device("cpu"), digits).test_x.dtype == digits.test_x.dtype
