"""Models, devices and fleets with which nothing could be learned: one sentence each, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import motley
from motley.commands.cli import main
from motley.core.errors import DataError, InputError, TrainingError
from motley.runtime.folders import has_checkpoint

RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 5)).astype(np.float32)
Y = np.arange(60) % 3
SETTINGS = {"rounds": 2, "clients": 4, "cohort": 2}


class Odd(nn.Module):
    """A linear model that returns something else."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.line = nn.Linear(5, 3)
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.line(x))


def refuse(out: Tensor) -> Tensor:
    raise ValueError("not today")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.Linear(7, 3), r"Linear cannot take the inputs of 'arrays', \(5,\) per sample \(float32\): mat1"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), r"parameter '0.weight' of the model Sequential is lazy.*model\(x"),
        (lambda: nn.Linear(5, 3).double(), r"parameter 'weight' of the model Linear is float64.*model.float\(\)"),
        (lambda: nn.Linear(5, 3).half(), "is float16; models are trained in float32"),
        (lambda: Odd(lambda out: (out, out)), "The model Odd returns a tuple; it must return one tensor"),
        (lambda: Odd(lambda out: {"logits": out}), "The model Odd returns a dict"),
        (lambda: Odd(refuse), r"Odd cannot take the inputs of 'arrays', .*: not today"),
        (lambda: nn.Linear, "The model is the class Linear that needs arguments; give a module"),
        (lambda: 3, "The model is of type int; give a module"),
        (nn.Flatten, "has no parameters to train."),
        (lambda: nn.Linear(5, 3).requires_grad_(False), "no parameters to train; all of them have requires_grad=False"),
    ],
)
def test_models(model: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        motley.train(model(), (X, Y), folder=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_inputs_of_other_types_become_float32() -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    results = [motley.train(model, (X.astype(kind), Y), **SETTINGS) for kind in (np.float32, np.float64)]
    assert torch.equal(results[0].params, results[1].params)


def test_labels_that_begin_at_one_are_told() -> None:
    with pytest.raises(InputError, match="3 outputs but the data 4 classes; its labels begin at 1: subtract it"):
        motley.train(nn.Linear(5, 3), (X, Y + 1), **SETTINGS)


@pytest.mark.parametrize("executor", ["auto", "loop", "pool(workers=1)", "batched"])
def test_devices_that_are_not_there_or_not_used_are_refused(executor: str, tmp_path: Path) -> None:
    for device in ("mps", "gpu", "cuda" if not torch.cuda.is_available() else "xpu"):
        with pytest.raises(InputError, match=f"device '{device}'"):
            motley.run("digits", rounds=1, device=device, executor=executor, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "world", [{"fleet": "loss(probability=1.0)"}, {"fleet": "uniform_spread(ratio=6)", "deadline": 1e-12}]
)
def test_nothing_ever_merged_warns_and_then_stops(world: dict[str, Any], tmp_path: Path) -> None:
    with (
        pytest.warns(UserWarning, match="No update has reached the server for 5 rounds, up to round 5"),
        pytest.raises(TrainingError, match=r"In 7 rounds not one update reached the server"),
    ):
        motley.run("digits", rounds=7, folder=tmp_path / "run", **world)
    assert has_checkpoint(tmp_path / "run")
    assert not (tmp_path / "run" / "summary.json").exists()


def test_the_command_ends_with_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["motley", "run", "digits", "rounds=2", "fleet=loss(probability=1.0)", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
