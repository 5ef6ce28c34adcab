"""A run goes on only with the functions it was begun with: its learning rate, its loss, its hooks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import motley
from motley.core.code_digest import code_digest
from motley.core.errors import InputError, RecipeError, StateError
from motley.extend import Part, Problem
from motley.methods import fedavg

CHANCE = np.random.default_rng(0)
X = CHANCE.normal(size=(120, 4)).astype(np.float32)
Y = (X @ np.array([1.0, -1.0, 0.5, 2.0], np.float32)).astype(np.float32)
LABELS = (Y > 0).astype(np.int64)
SMALL: dict[str, Any] = {"clients": 4, "cohort": 2, "seed": 1}


def stop(record: Any) -> None:
    if record.round == 2:
        raise KeyboardInterrupt


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - y) ** 2


def absolute(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - y).abs()


def pinball(share: float) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        gap = y - outputs.squeeze(-1)
        return torch.maximum(share * gap, (share - 1) * gap)

    return loss


class Scaled(Problem):
    def __init__(self, factor: float) -> None:
        super().__init__(name="scaled")
        self.factor = factor

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.factor * squared(outputs, y)


def network() -> nn.Module:
    return nn.Linear(4, 1)


def cut(folder: Path, **things: Any) -> Path:
    with pytest.raises(KeyboardInterrupt):
        motley.train(nn.Linear(4, 1), (X, Y), folder=folder, listeners=[stop], rounds=4, **SMALL, **things)
    return folder


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Problem(loss=squared, name="mine"), Problem(loss=absolute, name="mine")),
        (Problem(loss=pinball(0.9), name="mine"), Problem(loss=pinball(0.5), name="mine")),
        (Scaled(1.0), Scaled(2.0)),
    ],
)
def test_another_loss_of_the_same_name_is_refused(one: Problem, other: Problem, tmp_path: Path) -> None:
    folder = cut(tmp_path / "run", problem=one, lr=0.05)
    things: dict[str, Any] = {"model": nn.Linear(4, 1), "data": (X, Y)}
    with pytest.raises(StateError, match=r"problem .* code of its own was"):
        motley.resume(folder, **things, problem=other)
    assert len(motley.resume(folder, **things, problem=one).records) == 4


def test_another_hook_of_the_same_part_is_refused(tmp_path: Path) -> None:
    def method(scale: float) -> Any:
        return motley.compose(fedavg(), Part(name="pull", penalty=lambda c, me, batch, out: scale * c.params.sum()))

    def train(**more: Any) -> motley.Result:
        return motley.train(nn.Linear(4, 2), (X, LABELS), folder=tmp_path / "run", rounds=4, lr=0.1, **SMALL, **more)

    with pytest.raises(KeyboardInterrupt):
        train(method=method(1e-3), listeners=[stop])
    things: dict[str, Any] = {"model": nn.Linear(4, 2), "data": (X, LABELS)}
    with pytest.raises(StateError, match=r"method .* code of its own was"):
        motley.resume(tmp_path / "run", **things, method=method(2e-3))
    assert len(motley.resume(tmp_path / "run", **things, method=method(1e-3)).records) == 4


def test_another_function_as_learning_rate_is_refused(tmp_path: Path) -> None:
    folder = cut(tmp_path / "run", problem="regression", lr=lambda t: 0.1 / t)
    things: dict[str, Any] = {"model": nn.Linear(4, 1), "data": (X, Y)}
    with pytest.raises(StateError, match=r"lr .* rate by round was"):
        motley.resume(folder, **things, lr=lambda t: 0.2 / t)
    assert len(motley.resume(folder, **things, lr=lambda t: 0.1 / t).records) == 4


def test_a_run_with_such_a_rate_can_be_extended(tmp_path: Path) -> None:
    def train(folder: Path | None, rounds: int) -> motley.Result:
        told: dict[str, Any] = {"problem": "regression", "rounds": rounds, **SMALL}
        return motley.train(network, (X, Y), folder=folder, lr=lambda t: 0.1 / t, **told)

    train(tmp_path / "run", 2)
    longer = motley.resume(tmp_path / "run", rounds=4, model=network, data=(X, Y), lr=lambda t: 0.1 / t)
    assert [record.round for record in longer.records] == [1, 2, 3, 4]
    assert longer.scores["rmse"] == pytest.approx(train(None, 4).scores["rmse"], rel=1e-6)


@pytest.mark.parametrize("wrong", [lambda: 0.1, lambda a, b: 0.1, lambda t: "fast"])
def test_a_rate_that_is_none_is_told_in_a_sentence(wrong: Any) -> None:
    with pytest.raises(RecipeError, match="given as lr failed in round 1"):
        motley.train(nn.Linear(4, 2), (X, LABELS), lr=wrong, rounds=1, **SMALL)


def test_other_settings_are_not_blamed_on_the_file(tmp_path: Path) -> None:
    def train(rounds: int) -> motley.Result:
        return motley.train(nn.Linear(4, 2), (X, LABELS), folder=tmp_path, rounds=rounds, resume=True, lr=0.1, **SMALL)

    train(2)
    with pytest.raises(InputError, match="begun with other settings: rounds was 2, is 4") as caught:
        train(4)
    assert "Put it back" not in str(caught.value)


def test_what_a_digest_covers() -> None:
    assert code_digest(squared) == code_digest(squared) != code_digest(absolute)
    assert code_digest(pinball(0.9)) != code_digest(pinball(0.8))
    assert code_digest(Scaled(1.0)) == code_digest(Scaled(1.0)) != code_digest(Scaled(1.5))
    assert code_digest(motley.parts.proximal(mu=0.1).penalty) == ""
    weights = [torch.ones(3000), torch.ones(3000)]
    weights[1][1500] = 2.0
    assert code_digest(closing({"w": weights[0]})) != code_digest(closing({"w": weights[1]}))
    assert code_digest(closing({"f": squared})) != code_digest(closing({"f": absolute}))
    assert code_digest(closing(nn.CrossEntropyLoss(torch.tensor([1.0, 2.00001])))) != code_digest(
        closing(nn.CrossEntropyLoss(torch.tensor([1.0, 2.00002])))
    )
    ring: list[Any] = []
    ring.append(ring)
    assert code_digest(closing(ring))


def closing(held: Any) -> Callable[[Tensor, Tensor], Any]:
    return lambda outputs, y: held


def test_a_text_that_documents_changes_nothing() -> None:
    spaces: list[dict[str, Any]] = [{}, {}]
    exec("def f(x):\n    return x + 1", spaces[0])
    exec("def f(x):\n    'Adds one.'\n    return x + 1", spaces[1])
    assert code_digest(spaces[0]["f"]) == code_digest(spaces[1]["f"])


def test_sets_are_the_same_in_every_process() -> None:
    """Their order depends on a seed that each process draws."""
    text = (
        "from motley.core.code_digest import code_digest\n"
        "def f(x, known=frozenset({'a', 'b', 'c', 'd'})):\n    return x in {'sum', 'mean', 'none', 'twice'}\n"
        "print(code_digest(f))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", text], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(told) == 1


class Counting(Problem):
    def __init__(self) -> None:
        super().__init__(name="counting")
        self.calls, self.sizes = 0, list[int]()

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        self.sizes.append(len(y))
        return squared(outputs, y)


def test_what_an_object_collects_does_not_make_it_another(tmp_path: Path) -> None:
    problem = Counting()
    folder = cut(tmp_path / "run", problem=problem, lr=0.05, executor="loop")
    assert problem.calls > 0
    assert len(motley.resume(folder, model=nn.Linear(4, 1), data=(X, Y), problem=problem).records) == 4
