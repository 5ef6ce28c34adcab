"""Scores against scikit-learn."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch.nn.functional import softmax

from motley.client.problems import Classification
from motley.core.keys import Key
from motley.core.scoring import area_under_curve
from motley.data.datasets import load
from motley.nets.zoo import build
from motley.runtime import evaluation
from motley.runtime.evaluation import evaluate, predict, ready_to_judge
from tests import tiny

PROBLEM = Classification()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_scores_are_those_of_scikit_learn(seed: int, n_classes: int) -> None:
    from sklearn import metrics

    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, max(2, n_classes - seed), (83,), generator=generator)  # some classes may be absent
    logits = torch.randn(83, n_classes, generator=generator).mul(2).round()  # many ties
    logits[torch.arange(83), y] += 1.0
    found, guess = PROBLEM.scores(logits, y), logits.argmax(1)
    probabilities = softmax(logits.double(), 1)
    expected = {
        "accuracy": metrics.accuracy_score(y, guess),
        "loss": metrics.log_loss(y, probabilities, labels=range(n_classes)),
        "macro_f1": metrics.f1_score(y, guess, average="macro"),
        "weighted_f1": metrics.f1_score(y, guess, average="weighted"),
    }
    if n_classes == 2:
        expected["auc"] = metrics.roc_auc_score(y, (logits[:, 1] - logits[:, 0]))
    assert found == pytest.approx(expected, rel=1e-5)
    assert next(iter(found)) == PROBLEM.headline == "accuracy"


@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_the_accuracy_of_each_class_is_scikit_learns_recall(n_classes: int) -> None:
    from sklearn import metrics

    generator = torch.Generator().manual_seed(1)
    y = torch.randint(0, max(2, n_classes - 1), (83,), generator=generator)
    logits = torch.randn(83, n_classes, generator=generator)
    guess, per_class = logits.argmax(1), PROBLEM.details(logits, y)["per_class"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recall = metrics.recall_score(y, guess, average=None, labels=range(n_classes))
    for c in range(n_classes):
        if (y == c).any():
            assert per_class[c] == pytest.approx(recall[c])
        else:
            assert math.isnan(per_class[c])


def test_a_class_that_is_neither_there_nor_guessed_does_not_count() -> None:
    """F1 of class 0: 2 * 1 / (2 + 1), of class 1: 2 * 1 / (1 + 2)."""
    guess = torch.tensor([0, 1, 1])
    outputs, y = torch.eye(5)[guess], torch.tensor([0, 0, 1])
    assert PROBLEM.scores(outputs, y)["macro_f1"] == pytest.approx(2 / 3)
    assert [math.isnan(value) for value in PROBLEM.details(outputs, y)["per_class"]] == [False, False, True, True, True]


def test_auc_by_hand() -> None:
    """Pairs (positive, negative): 3 of 4 in order, one tie counts half."""
    assert area_under_curve(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1])) == 3.5 / 4
    assert area_under_curve(torch.ones(4), torch.tensor([0, 1, 0, 1])) == 0.5
    assert area_under_curve(torch.ones(3), torch.ones(3, dtype=torch.int64)) is None


def test_evaluating_in_pieces_changes_nothing() -> None:
    made = tiny.experiment()
    params = made.net.initial()
    whole = predict(made.net, made.problem, params, made.dataset)
    pieces = predict(made.net, made.problem, params, made.dataset, batch_size=7)
    assert torch.allclose(whole, pieces, atol=1e-6)
    found = evaluate(made.net, PROBLEM, params, made.dataset)
    assert torch.equal(found.outputs, whole)
    hits = (whole.argmax(1) == made.dataset.test_y).float()
    assert found.scores["accuracy"] == pytest.approx(float(hits.mean()))


def test_evaluation_at_a_chosen_frequency_and_always_at_the_end() -> None:
    result = tiny.run(rounds=5, evaluate_every=3)
    assert [record.accuracy is not None for record in result.records] == [False, False, True, False, True]
    assert result.summary["rounds"] == 5
    assert result.summary["accuracy"] == result.records[-1].accuracy


def test_inputs_made_ready_once_give_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load("digits")
    net = build("logistic", digits.input_shape, digits.n_classes, 0, Key.root(0))
    ready = ready_to_judge(torch.device("cpu"), digits)
    assert ready.test_x.dtype == torch.float32
    assert ready.scaling is None
    one, other = (evaluate(net, PROBLEM, net.initial(), data) for data in (ready, digits))
    assert torch.equal(one.outputs, other.outputs)
    assert one.scores == other.scores
    monkeypatch.setattr(evaluation, "READY_BYTES", 10)
    assert ready_to_judge(torch.device("cpu"), digits).test_x.dtype == digits.test_x.dtype
