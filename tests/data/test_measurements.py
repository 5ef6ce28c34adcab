"""Numbers to be learned that were given as labels: refused, never taken for classes without a word."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import nn

import motley
from motley.core.errors import InputError

CHANCE = np.random.default_rng(0)
X = CHANCE.normal(size=(400, 5)).astype(np.float32)
DISEASE = np.round(150 + 60 * X[:, 0] + 20 * CHANCE.normal(size=400)).clip(1)  # whole numbers kept as float64
SMALL = {"clients": 4, "cohort": 2, "rounds": 1}


@pytest.mark.parametrize("model", ["mlp(hidden=[8])", nn.Linear(5, 1), nn.Linear(5, 347)])
def test_a_whole_float_target_is_no_class(model: nn.Module | str) -> None:
    with pytest.raises(InputError, match=r"different values in .* samples, .* problem='regression'"):
        motley.train(model, (X, DISEASE), **SMALL)


def test_it_is_learned_as_numbers_when_that_is_said() -> None:
    result = motley.train(nn.Linear(5, 1), (X, DISEASE / 100), problem="regression", lr=0.05, **SMALL)
    assert "accuracy" not in result.scores


def test_few_float_labels_are_classes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = motley.train(nn.Linear(5, 3), (X, (X[:, 0] > 0) + (X[:, 1] > 0) * 1.0), **SMALL)
    assert result.scores["accuracy"] > 0


@pytest.mark.parametrize("homes", [False, True])
def test_one_class_is_nothing_to_learn(homes: bool) -> None:
    y = np.zeros(400)
    data = [(X[i::4], y[i::4]) for i in range(4)] if homes else (X, y)
    with pytest.raises(InputError, match="one class and nothing to learn"):
        motley.train(nn.Linear(5, 1), data, test=(X[:9], y[:9]), cohort=2, rounds=1)


def test_the_hint_is_about_what_is_there() -> None:
    whole = (DISEASE / 40).astype(np.int64)
    with pytest.raises(InputError, match=r"1 output but the data .* say problem=regression"):
        motley.train(nn.Linear(5, 1), (X, whole), **SMALL)
    with pytest.raises(InputError, match="begin at 1: subtract it"):
        motley.train(nn.Linear(5, 2), (X, 1 + (X[:, 0] > 0)), **SMALL)
    with pytest.raises(InputError, match="holds only 2 of them: number them from 0"):
        motley.train(nn.Linear(5, 2), (X, 7 * (X[:, 0] > 0)), **SMALL)


def test_tensors_that_want_gradients_and_sparse_matrices() -> None:
    result = motley.train(nn.Linear(5, 2), (torch.tensor(X, requires_grad=True), (X[:, 0] > 0) * 1), **SMALL)
    assert result.scores["accuracy"] > 0
    with pytest.raises(InputError, match=r"give a sparse matrix as x.toarray\(\)"):
        motley.train(nn.Linear(5, 2), (csr_matrix(X), (X[:, 0] > 0) * 1), **SMALL)


def test_what_can_never_hold_and_what_leaves_nothing_is_told() -> None:
    with pytest.raises(InputError, match=r"lies between 0 and 1; write accuracy>=0.9 for 90 %"):
        motley.train(nn.Linear(5, 2), (X, (X[:, 0] > 0) * 1), stop="accuracy>=90", **SMALL)
    with pytest.warns(UserWarning, match="events=True leaves nothing without a folder"):
        motley.train(nn.Linear(5, 2), (X, (X[:, 0] > 0) * 1), events=True, **SMALL)


def test_a_model_that_cannot_be_written(tmp_path: Path) -> None:
    result = motley.train(nn.Linear(5, 2), (X, (X[:, 0] > 0) * 1), **SMALL)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written to"):
        result.save(tmp_path / "file" / "model.safetensors")
