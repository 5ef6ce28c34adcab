"""The plain recipe on CIFAR-10: the page shows it as it is, and it runs."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import motley
from motley.data.downloads import VARIABLE

PAGE = Path(__file__).parents[2] / "docs" / "cifar10.md"
RECIPE = motley.load_recipe("cifar10_fedavg")
SHORT = {"clients": 100, "cohort": 2, "rounds": 1, "epochs": 0.1, "executor": "loop", "evaluate_every": 1}


def test_the_page_shows_the_recipe_as_it_is() -> None:
    shown = tomllib.loads(re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.M | re.S)[0])
    assert RECIPE.model_dump(include=set(shown)) == shown
    assert RECIPE.model_dump(include={"data", "method", "clients"}) == {
        "data": "cifar10",
        "method": "fedavg",
        "clients": 100,
    }


def test_it_trains_on_pictures_of_that_shape() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(600) % 10
    x = rng.normal(size=(600, 3, 32, 32)).astype(np.float32) + y[:, None, None, None]
    settings = RECIPE.model_dump(include={"augment", "batch_size", "lr"})
    kept = {**SHORT, "clients": 4, "epochs": 1}
    result = motley.train(RECIPE.model, (x, y), partition=RECIPE.partition, **settings, **kept)
    assert np.isfinite(result.records[-1].scores["loss"])
    assert result.model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


@pytest.mark.slow
def test_it_trains_on_cifar10_where_that_is() -> None:
    if not list(Path(os.environ.get(VARIABLE) or os.devnull).glob("cifar*")):
        pytest.skip("CIFAR-10 is not on this machine; MOTLEY_DATA names the directory that holds it.")
    result = motley.run("cifar10_fedavg", **SHORT)
    assert result.summary["rounds"] == 1
    assert 0.0 < result.accuracy < 1.0
