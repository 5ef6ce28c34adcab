"""Binary, multi-label and next-token problems: by hand, beside scikit-learn, and the same on every engine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import motley
from motley.client.problems import make_problem
from motley.core.errors import ConflictError, DataError, InputError
from motley.core.scoring import average_precision, calibration_error
from motley.data.adapters import from_arrays
from motley.runtime.experiment import prepare
from motley.runtime.recipe import load

CHANCE = np.random.default_rng(0)
X = CHANCE.normal(size=(240, 6)).astype(np.float32)
WAY = CHANCE.normal(size=(6, 3)).astype(np.float32)
LABELS = (X @ WAY + 0.3 * CHANCE.normal(size=(240, 3)) > 0).astype(np.float32)
TEXTS = CHANCE.integers(0, 7, size=(120, 9))
SMALL: dict[str, Any] = {"clients": 4, "cohort": 3, "rounds": 3, "batch_size": 16, "seed": 1}


def linear(width: int) -> Any:
    return lambda: nn.Linear(6, width)


class Chars(nn.Module):
    """Foretells from the token at the place and the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.head = nn.Linear(16, 7)

    def forward(self, x: Tensor) -> Tensor:
        e = self.embed(x)
        before = torch.cat([torch.zeros_like(e[:, :1]), e[:, :-1]], 1)
        made: Tensor = self.head(torch.cat([e, before], -1))
        return made


TASKS: dict[str, tuple[Any, Any, str]] = {
    "binary": (linear(1), (X, LABELS[:, 0].astype(int)), "accuracy"),
    "multilabel": (linear(3), (X, LABELS), "average_precision"),
    "next_token": (Chars, (TEXTS[:, :-1], TEXTS[:, 1:]), "perplexity"),
    "regression(error=huber)": (linear(1), (X, X @ WAY[:, 0]), "r2"),
}


@pytest.mark.parametrize("name", TASKS)
def test_engines_agree(name: str) -> None:
    model, data, headline = TASKS[name]
    found = {
        executor: motley.train(model, data, problem=name, lr=0.3, executor=executor, **SMALL)
        for executor in ("loop", "pool(workers=2)", "batched(device=cpu)")
    }
    loop, pool, batched = found.values()
    assert torch.equal(loop.params, pool.params)
    assert torch.allclose(loop.params, batched.params, atol=1e-5)
    assert loop.summary["headline"] == headline
    start = motley.train(model, data, problem=name, lr=1e-9, **{**SMALL, "rounds": 1})
    better = {"perplexity": -1}.get(headline, 1)
    assert better * loop.scores[headline] > better * start.scores[headline]


def test_binary_scores_are_those_of_scikit_learn() -> None:
    logit = torch.randn(200, 1, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    y = (torch.rand(200, generator=torch.Generator().manual_seed(1)) < logit[:, 0].sigmoid()).long()
    found = make_problem("binary").scores(logit, y)
    score, guess = logit[:, 0].numpy(), logit[:, 0].numpy() > 0
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y, guess))
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(y, score))
    assert found["f1"] == pytest.approx(metrics.f1_score(y, guess))
    assert found["average_precision"] == pytest.approx(metrics.average_precision_score(y, score))
    assert found["loss"] == pytest.approx(metrics.log_loss(y, 1 / (1 + np.exp(-score))), rel=1e-5)


def test_calibration_by_hand() -> None:
    """Two bins: three at 0.9 of which two are right, two at 0.6 of which none is: (3 * |0.9 - 2/3| + 2 * 0.6) / 5."""
    confidence = torch.tensor([0.9, 0.9, 0.9, 0.6, 0.6])
    right = torch.tensor([1, 1, 0, 0, 0])
    assert calibration_error(confidence, right) == pytest.approx((3 * (0.9 - 2 / 3) + 2 * 0.6) / 5)
    assert calibration_error(torch.ones(4), torch.ones(4)) == 0.0


def test_a_weight_of_the_positive_class() -> None:
    logit, y = torch.tensor([[0.5], [-1.0]]), torch.tensor([1, 0])
    found = make_problem("binary(positive=3)").losses(logit, y)
    expected = [3 * math.log(1 + math.exp(-0.5)), math.log(1 + math.exp(-1.0))]
    assert found.tolist() == pytest.approx(expected)


def test_multilabel_scores_are_those_of_scikit_learn() -> None:
    draw = torch.Generator().manual_seed(2)
    logit = torch.randn(150, 4, generator=draw).round(decimals=1)
    y = (torch.rand(150, 4, generator=draw) < logit.sigmoid()).float()
    found = make_problem("multilabel").scores(logit, y)
    guess = logit.numpy() > 0
    assert found["average_precision"] == pytest.approx(metrics.average_precision_score(y, logit, average="macro"))
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(y, logit, average="macro"))
    assert found["macro_f1"] == pytest.approx(metrics.f1_score(y, guess, average="macro"), rel=1e-6)
    assert found["micro_f1"] == pytest.approx(metrics.f1_score(y, guess, average="micro"), rel=1e-6)
    assert found["all_right"] == pytest.approx(metrics.accuracy_score(y, guess))
    assert average_precision(logit[:, 0], torch.zeros(150)) is None


def test_perplexity_by_hand() -> None:
    """Two texts of two tokens; the last token of the second is padding and does not count."""
    outputs = torch.tensor([[[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [[0.0, 0.0, 0.0], [5.0, 0.0, 0.0]]])
    y = torch.tensor([[0, 1], [2, 0]], dtype=torch.uint8)
    problem = make_problem("next_token")
    every = cross_entropy(outputs.reshape(4, 3), y.long().reshape(4), reduction="none")
    assert problem.losses(outputs, y).tolist() == pytest.approx(every.reshape(2, 2).mean(1).tolist())
    found = problem.scores(problem.kept(outputs, y), y)
    assert found["perplexity"] == pytest.approx(float(every.mean().exp()))
    assert found["accuracy"] == 0.75
    padded = make_problem("next_token(ignore=0)")
    kept = padded.kept(outputs, y)
    assert kept[:, 2].tolist() == [1.0, 1.0]
    assert padded.scores(kept, y)["perplexity"] == pytest.approx(float(every[[1, 2]].mean().exp()))


def test_texts_whose_target_is_one_token_have_one_at_each_position() -> None:
    recipe = load({"data": "digits", "problem": "classification", "clients": 4})
    assert prepare(recipe).dataset.y.dim() == 1
    problem = make_problem("next_token")
    data = from_arrays(TEXTS[:, :-1], TEXTS[:, -1], kind="text")
    found = problem.arranged(data)
    whole = torch.cat([data.x, data.y[:, None].to(data.x.dtype)], 1)
    assert torch.equal(found.y, whole[:, 1:])
    assert (found.n_classes, problem.width(found)) == (0, 7)


def test_scores_of_ones_own_stand_beside_the_others() -> None:
    def second(outputs: Tensor, y: Tensor) -> dict[str, float]:
        return {"among_two": float((outputs.topk(2, 1).indices == y[:, None]).any(1).float().mean())}

    problem = make_problem("classification").with_scores(second, {"among_two": 1})
    y = LABELS.sum(1).astype(int)
    result = motley.train(linear(4), (X, y), problem=problem, stop="among_two>=0.1", **SMALL)
    assert len(result.records) == 1
    assert result.scores["among_two"] >= result.scores["accuracy"]
    assert result.summary["headline"] == "accuracy"


@pytest.mark.parametrize(
    ("problem", "data", "model", "words"),
    [
        ("binary", (X, LABELS.sum(1).astype(int)), linear(1), "needs labels 0 and 1, but 'arrays' has 4 classes"),
        ("multilabel", (X, X[:, :3]), linear(3), "needs targets of 0 and 1"),
        ("multilabel", (X, LABELS[:, 0]), linear(1), r"have the shape \[192\]"),
        ("multilabel", (X, LABELS), linear(2), "has 2 outputs but the data 3 target numbers"),
        ("next_token", (TEXTS[:, :-1], TEXTS[:, 3:]), Chars, "for texts of 8 tokens the targets have the shape"),
    ],
)
def test_what_does_not_fit_is_refused(problem: str, data: Any, model: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        motley.train(model, data, problem=problem, **SMALL)


@pytest.mark.parametrize(("method", "name"), [("rebafl", "binary"), ("fedavg+relaxed_balanced_softmax", "multilabel")])
def test_parts_that_need_classes_refuse_other_tasks_by_name(method: str, name: str) -> None:
    model, data, _ = TASKS[name]
    with pytest.raises(ConflictError, match=name):
        motley.train(model, data, problem=name, method=method, **SMALL)


def test_padding_may_be_a_number_that_is_no_token() -> None:
    y = TEXTS[:, 1:].copy()
    y[80:, 5:] = -100
    with pytest.raises(DataError, match=r"there is a target -100; .*next_token\(ignore=-100\)"):
        motley.train(Chars, (TEXTS[:, :-1], y), problem="next_token", **SMALL)
    found = [
        motley.train(Chars, (TEXTS[:, :-1], y), problem="next_token(ignore=-100)", executor=executor, **SMALL)
        for executor in ("loop", "batched(device=cpu)")
    ]
    assert torch.allclose(found[0].params, found[1].params, atol=1e-5)
    assert math.isfinite(found[0].scores["perplexity"])


def test_a_score_that_the_test_samples_cannot_tell_is_not_called_unknown() -> None:
    test = (X[:20], np.ones(20, int))
    with pytest.raises(InputError, match=r"The score 'auc' cannot be told of these test samples"):
        motley.train(linear(1), (X, LABELS[:, 0].astype(int)), test=test, problem="binary", stop="auc>=0.9", **SMALL)


def test_numbers_are_no_texts() -> None:
    with pytest.raises(DataError, match="needs texts as tokens, but 'digits' holds numbers"):
        prepare(load({"data": "digits", "problem": "next_token"}))
