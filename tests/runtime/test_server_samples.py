"""Samples that the server holds: taken out of what is given in Python, too."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

import motley
from motley.core.errors import RecipeError
from motley.data.adapters import from_arrays
from motley.runtime.recipe import Recipe
from motley.runtime.train import as_federated

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(200, 3)).astype(np.float32), np.arange(200) % 2
SMALL = {"clients": 4, "cohort": 2, "rounds": 2}


def test_no_client_holds_what_the_server_holds() -> None:
    whole = from_arrays(X, Y)
    divided, public = as_federated((X, Y), None, Recipe(clients=4, public="held(fraction=0.25)"), motley.Problem())
    assert public is not None
    assert len(public.y) == len(whole.y) // 4
    assert int(divided.sizes.sum()) == len(whole.y) - len(public.y)


def test_parts_that_train_on_the_server_are_given_samples() -> None:
    model = nn.Linear(3, 2)
    result = motley.train(model, (X, Y), method="fedavg_ft(per_class=5)", public="held(fraction=0.25)", **SMALL)
    plain = motley.train(model, (X, Y), method="fedavg", public="held(fraction=0.25)", **SMALL)
    assert result.summary["model_sha256"] != plain.summary["model_sha256"]


def test_data_that_are_divided_leave_nothing_to_the_server() -> None:
    homes = [(X[i::4], Y[i::4]) for i in range(4)]
    with pytest.raises(RecipeError, match="leave no samples to the server"):
        motley.train(nn.Linear(3, 2), homes, test=(X[:20], Y[:20]), public="held", rounds=1, cohort=2)
