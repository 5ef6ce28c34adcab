"""``scale=`` in runs, and the module that takes raw inputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import motley
from motley.core.errors import DataError, InputError
from motley.data.datasets import load
from motley.runtime.folders import read_preparation
from motley.runtime.result import Result

RNG = np.random.default_rng(2)
Y = RNG.integers(0, 3, 400)
X = RNG.normal(size=(400, 4)) * [1.0, 50.0, 0.01, 3.0] + np.outer(Y, [1.0, 80.0, 0.02, 0.0])
TEST = (X[300:], Y[300:])
SETTINGS = {"rounds": 3, "cohort": 3, "clients": 6, "lr": 0.1, "test": TEST}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def accuracy(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float((module(x).argmax(1) == y).double().mean())


def agrees(result: Result, x: object = TEST[0], y: object = TEST[1]) -> None:
    """In plain torch the module with raw inputs gives exactly the score that was reported."""
    module = result.module()
    raw, labels = torch.as_tensor(x), torch.as_tensor(y)
    assert accuracy(module, raw, labels) == result.accuracy
    with torch.no_grad():
        loss = float(nn.functional.cross_entropy(module(raw), labels))
    assert loss == result.records[-1].loss


@pytest.mark.parametrize("scale", ["own", "none", "pooled", "per_client", "public"])
def test_the_module_takes_raw_inputs_and_gives_the_reported_score(scale: str) -> None:
    more = {"public": "held(fraction=0.1)"} if scale == "public" else {}
    result = motley.train(model(), (X[:300], Y[:300]), scale=scale, **SETTINGS, **more)
    agrees(result)
    assert result.summary["scale"] == {"own": "none"}.get(scale, scale)
    assert result.recipe.scale == scale
    if scale in ("pooled", "per_client", "public"):
        assert accuracy(result.model, torch.tensor(TEST[0]).float(), torch.tensor(TEST[1])) != result.accuracy


def test_own_data_are_not_scaled_unless_asked() -> None:
    one = motley.train(model(), (X[:300], Y[:300]), **SETTINGS)
    two = motley.train(model(), (X[:300], Y[:300]), scale="none", **SETTINGS)
    other = motley.train(model(), (X[:300], Y[:300]), scale="pooled", **SETTINGS)
    assert torch.equal(one.params, two.params)
    assert not torch.equal(one.params, other.params)


def test_data_given_client_by_client_are_scaled_as_asked() -> None:
    homes = [(X[i:300:3], Y[i:300:3]) for i in range(3)]
    settings = {"test": TEST, "rounds": 2, "cohort": 2, "lr": 0.1}
    for scale in ("pooled", "per_client"):
        agrees(motley.train(model(), homes, scale=scale, **settings))
    with pytest.raises(DataError, match="scale=public takes the statistics of samples that the server holds"):
        motley.train(model(), homes, scale="public", **settings)


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3)])
def test_the_shape_of_raw_images_is_part_of_the_module(shape: tuple[int, ...]) -> None:
    channels = 3 if len(shape) == 3 else 1
    images = RNG.integers(0, 255, (120, *shape)).astype(np.uint8)
    y = (images.reshape(120, -1).mean(1) > 127).astype(int)
    net = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    result = motley.train(
        net, (images, y), test=(images[:50], y[:50]), scale="pooled", clients=4, cohort=2, rounds=2, lr=0.05
    )
    agrees(result, images[:50], y[:50])
    module, raw = result.module(), torch.from_numpy(images[:50])
    exported = torch.export.export(module, (raw,)).module()
    assert torch.equal(exported(raw), module(raw))


def test_motleys_own_data_keep_their_scaling_and_say_so(tmp_path: Path) -> None:
    result = motley.run("digits", rounds=2, folder=tmp_path / "run")
    digits = load("digits")
    agrees(result, digits.test_x, digits.test_y)
    assert result.summary["scale"] == "own"
    assert 'scale = "own"' in (tmp_path / "run" / "recipe.toml").read_text()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["scale"] == "own"
    kept = read_preparation(tmp_path / "run")
    assert kept is not None
    again = kept.module(result.model)
    assert accuracy(again, digits.test_x, digits.test_y) == result.accuracy
    assert read_preparation(tmp_path) is None


def test_skewed_and_split_data_keep_the_scaling_of_raw_inputs() -> None:
    digits = load("digits")
    result = motley.run("digits", rounds=1, skew="local_standardise", split="by_clients(folds=5)")
    module = result.module()
    with torch.no_grad():
        expected = result.model(digits.inputs(digits.test_x))
        torch.testing.assert_close(module(digits.test_x), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("split", ["by_samples", "within_clients", "by_clients(folds=4)"])
def test_held_out_samples_are_scaled_with_every_split(split: str) -> None:
    for scale in ("pooled", "per_client"):
        result = motley.run("digits", rounds=4, scale=scale, split=split, lr=0.1, clients=12)
        assert result.accuracy > 0.4
        last = result.records[-1].extra["validation_accuracy"]
        assert last > 0.4


def test_unknown_scalings_are_refused() -> None:
    with pytest.raises(InputError, match="Recipe key 'scale' is 'global'"):
        motley.run("digits", scale="global")
    with pytest.raises(DataError, match="scale=public takes the statistics"):
        motley.run("digits", scale="public")
