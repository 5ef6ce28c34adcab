"""What is learned is a problem: numbers, classes, or whatever a user's own loss says, alike on every executor."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import motley
from motley.client.minibatch import minibatches
from motley.client.problems import PROBLEMS, Classification, Regression, make_problem
from motley.core.errors import ConflictError, DataError, InputError, UnknownNameError
from motley.core.keys import fold_in, normal
from motley.core.network import Network
from motley.core.part import PARTS, compose
from motley.core.problem import Model, Problem
from motley.core.types import Batch, Output
from motley.methods import make_method
from motley.runtime.diagnostics import DIAGNOSTICS
from motley.runtime.experiment import Given, prepare
from motley.runtime.launch import Result, Run
from motley.runtime.recipe import load
from tests import tiny


def train(problem: Problem, executor: str = "loop", method: str = "fedavg", targets: int = 1, **changes: Any) -> Result:
    settings = {"rounds": 3, "cohort": 5, "model": "mlp(hidden=[6, 5])", **changes}
    recipe = tiny.recipe(method=method, executor=executor, **settings)
    return Run(prepare(recipe, Given(tiny.numbers(targets), fleet=tiny.uneven_fleet(), problem=problem))).go()


# ------------------------------------------------------------------------------------- by hand


def test_errors_of_numbers_by_hand() -> None:
    outputs, y = torch.tensor([[1.0], [5.0], [-2.0]]), torch.tensor([1.5, 2.0, -2.0])
    assert Regression().losses(outputs, y).tolist() == [0.25, 9.0, 0.0]
    assert Regression("absolute").losses(outputs, y).tolist() == [0.5, 3.0, 0.0]
    assert Regression("huber", delta=1.0).losses(outputs, y).tolist() == [0.125, 2.5, 0.0]
    both = Regression().losses(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 1.0]]))
    assert both.tolist() == [2.5, 5.0]


def test_scores_of_numbers_by_hand() -> None:
    """Targets 1, 2, 3 with the mean 2; gaps 0, 1, -1: R2 = 1 - 2 / 2."""
    found = Regression().scores(torch.tensor([[1.0], [3.0], [2.0]]), torch.tensor([1.0, 2.0, 3.0]))
    assert found == pytest.approx({"r2": 0.0, "mae": 2 / 3, "rmse": math.sqrt(2 / 3), "loss": 2 / 3})
    assert next(iter(found)) == Regression().headline == "r2"
    assert math.isnan(Regression().scores(torch.ones(2, 1), torch.ones(2))["r2"])


def test_a_mask_and_shares_count_as_in_a_mean() -> None:
    batch = Batch(torch.zeros(3, 1), torch.tensor([1.0, 3.0, 100.0]), torch.tensor([1.0, 1.0, 0.0]))

    class Nothing:
        client: Any = None

        def __call__(self, x: Tensor) -> Any:
            return Output(x, torch.zeros(3, 1))

    assert float(Regression().loss(Nothing(), batch)) == pytest.approx(5.0)
    shared = batch._replace(share=torch.tensor([0.25, 0.75, 0.0]))
    assert float(Regression().loss(Nothing(), shared)) == pytest.approx(0.25 + 0.75 * 9)


def test_what_is_better_is_the_problems_to_say() -> None:
    assert [Regression().better(name) for name in ("r2", "mae", "rmse", "loss")] == [1, -1, -1, -1]
    own = Problem(pinball, goals={"coverage": 1})
    assert (own.headline, own.better("coverage"), own.better("loss")) == ("coverage", 1, -1)
    assert Problem(pinball).headline == "loss"


# ------------------------------------------------------------------------------------- on every executor


def pinball(outputs: Tensor, y: Tensor) -> Tensor:
    """The ninth decile."""
    gap = y - outputs.squeeze(-1)
    return torch.maximum(0.9 * gap, -0.1 * gap)


def coverage(outputs: Tensor, y: Tensor) -> dict[str, float]:
    return {"coverage": float((y <= outputs.squeeze(-1)).float().mean())}


def mean_square(outputs: Tensor, y: Tensor) -> Tensor:
    """Forgets that every sample has a loss of its own."""
    return (outputs.squeeze(-1) - y).square().mean()


class Denoising(Problem):
    """Numbers from inputs with noise on them, which is drawn anew in every step of every client."""

    def __init__(self) -> None:
        super().__init__(name="denoising")

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs.squeeze(-1) - y).square()

    def loss(self, model: Model, batch: Batch) -> Tensor:
        noise = normal(fold_in(fold_in(model.client.key, 77), model.client.step), batch.x.shape)
        return batch.mean(self.losses(model(batch.x + 0.5 * noise).logits, batch.y))


OWN: list[Problem] = [
    Regression(),
    Regression("huber", delta=0.5),
    Problem(pinball, coverage, {"coverage": 1}, "decile"),
    Denoising(),
]


@pytest.mark.parametrize("problem", OWN, ids=lambda problem: problem.name)
def test_executors_agree(problem: Problem) -> None:
    given: dict[str, Any] = {"method": "fedprox(mu=0.1)+ama", "optimizer": "sgd(momentum=0.5, weight_decay=0.01)"}
    loop, pool, batched = (train(problem, executor, **given) for executor in ("loop", "pool(workers=2)", "batched"))
    assert torch.equal(pool.params, loop.params)
    torch.testing.assert_close(batched.params, loop.params, rtol=1e-4, atol=1e-5)
    assert batched.scores == pytest.approx(loop.scores, rel=1e-3, abs=1e-4)


def test_processes_that_train_batches_agree_too() -> None:
    loop, batched = (train(Denoising(), executor) for executor in ("loop", "batched(workers=2)"))
    torch.testing.assert_close(batched.params, loop.params, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("problem", OWN, ids=lambda problem: problem.name)
@pytest.mark.parametrize("model", ["logistic", "mlp(hidden=[6])"])
def test_plain_steps_agree_too(problem: Problem, model: str) -> None:
    """No part touches the loss, for which executors take short cuts; those for classes are not taken."""
    loop, batched = (train(problem, executor, model=model, rounds=1) for executor in ("loop", "batched"))
    torch.testing.assert_close(batched.params, loop.params, rtol=1e-4, atol=1e-5)


def test_several_numbers_for_a_sample() -> None:
    loop, batched = (train(Regression(), executor, "scaffold", targets=3, rounds=2) for executor in ("loop", "batched"))
    assert loop.net is not None
    assert loop.net.n_classes == 3
    torch.testing.assert_close(batched.params, loop.params, rtol=1e-4, atol=1e-5)


def test_numbers_are_learned() -> None:
    result = train(Regression(), rounds=30, lr=0.2, cohort=6)
    assert result.records[0].scores["r2"] < 0.5 < result.scores["r2"]
    assert list(result.scores) == ["r2", "mae", "rmse", "loss"]


def test_the_ninth_decile_lies_above_nine_of_ten() -> None:
    result = train(OWN[2], rounds=60, lr=0.2, cohort=6)
    assert list(result.scores) == ["coverage", "loss"]
    assert result.scores["coverage"] > 0.75


def test_rounds_of_numbers_against_a_plain_loop() -> None:
    e = tiny.experiment(
        make_method("fedavg"), federated=tiny.numbers(), problem=Regression(), net=small(), cohort=6, rounds=2
    )
    w = e.net.initial()
    for number in (1, 2):
        models = []
        for client in range(6):
            flat, data = w.clone(), e.data.client(client)
            key, steps = e.key.fold("client", number, client).tensor(), 2 * -(-len(data.y) // 4)
            for batch, _ in minibatches(key, data, 4, steps):
                leaf = flat.clone().requires_grad_()
                mse_loss(e.net(leaf, batch.x).logits.squeeze(-1), batch.y).backward()
                assert leaf.grad is not None
                flat = flat - 0.1 * leaf.grad
            models.append(flat * len(data.y))
        w = torch.stack(models).sum(0) / sum(tiny.SIZES)
    torch.testing.assert_close(Run(e).go().params, w, rtol=1e-5, atol=1e-6)


def small() -> Network:
    return Network(nn.Sequential(nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 1)))


def focal(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy that counts less where the model is sure."""
    loss = cross_entropy(outputs, y, reduction="none")
    return (1 - (-loss).exp()) ** 2 * loss


class Focal(Classification):
    """Classes by another loss; parts that need labels go on working."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return focal(outputs, y)


@pytest.mark.parametrize("method", ["fedavg", "rebafl+moon"])
def test_another_loss_of_classes(method: str) -> None:
    """Also for a linear model, whose short cuts are those of the cross-entropy."""
    for hidden in ((), (6,)):
        spec = f"mlp(hidden={list(hidden)})" if hidden else "logistic"
        found = [
            Run(prepare(
                tiny.recipe(method=method, model=spec, executor=executor),
                Given(tiny.data(), fleet=tiny.uneven_fleet(), problem=problem),
            )).go().params
            for executor, problem in (("loop", Focal()), ("batched", Focal()), ("loop", Classification()))
        ]  # fmt: skip
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(found[0], found[2], atol=1e-4)


# ------------------------------------------------------------------------------------- what does not fit

NEEDY = [entry.name for entry in PARTS if entry.factory.__module__.startswith("motley.")
         and "labels" in PARTS.make(entry.name).needs]  # fmt: skip


def test_some_parts_need_labels() -> None:
    assert {"relaxed_balanced_softmax", "prototype_augmentation", "label_smoothing", "retrain_head"} <= set(NEEDY)


@pytest.mark.parametrize("name", NEEDY)
def test_parts_that_need_labels_are_refused_by_name(name: str) -> None:
    for problem in (Regression(), OWN[2]):
        with pytest.raises(
            ConflictError, match=f"The part '{name}' needs class labels, which the problem '{problem.name}'"
        ):
            tiny.experiment(compose(PARTS.make(name)), federated=tiny.numbers(), problem=problem)


def test_parts_that_need_features_are_refused_where_a_problem_has_none() -> None:
    class Featureless(Problem):
        offers = frozenset()

    with pytest.raises(
        ConflictError, match="'model_contrastive' needs features of the last layer, which the problem 'odd'"
    ):
        tiny.experiment(make_method("moon"), federated=tiny.numbers(), problem=Featureless(pinball, name="odd"))
    train(Regression(), method="moon", rounds=1)


@pytest.mark.parametrize("name", [entry.name for entry in DIAGNOSTICS])
def test_diagnostics_measure_numbers_or_say_that_they_need_labels(name: str) -> None:
    if "labels" in DIAGNOSTICS[name].meta.get("needs", ()):
        with pytest.raises(ConflictError, match=f"The diagnostic '{name}' needs class labels, which the problem 'regr"):
            train(Regression(), diagnostics=(name,))
    else:
        plain, measured = (train(Regression(), rounds=2, diagnostics=names) for names in ((), (name,)))
        assert torch.equal(plain.params, measured.params)


def test_problems_have_short_forms(tmp_path: Path) -> None:
    assert {"classification", "regression"} <= set(PROBLEMS.entries)
    assert make_problem("regression(error=huber, delta=2.0)").losses(torch.ones(1, 1), torch.zeros(1)).tolist() == [0.5]
    own = OWN[2]
    assert make_problem(own) is own
    with pytest.raises(UnknownNameError, match="no problem named 'regresion'; did you mean 'regression'"):
        make_problem("regresion")
    with pytest.raises(InputError, match="no error 'cubic'; choose one of squared, absolute, huber"):
        make_problem("regression(error=cubic)")
    with pytest.raises(InputError, match=r"one problem, but 'regression\+classification' names 2"):
        make_problem("regression+classification")


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (Classification(), "The problem 'classification' needs class labels, but the targets of 'tiny' are numbers"),
        (
            Problem(mean_square, name="mean"),
            r"The loss of the problem 'mean' gives the shape \(\); it must give one number",
        ),
        (Problem(cross_entropy, name="classes"), "The loss of the problem 'classes' cannot be computed .*: "),
    ],
    ids=lambda given: getattr(given, "name", "sentence"),
)
def test_a_loss_that_does_not_fit_the_data_is_told_before_anything_begins(problem: Problem, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        tiny.experiment(federated=tiny.numbers(), problem=problem, net=small())


def test_numbers_are_not_learned_from_classes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'regression' cannot be computed from outputs \(2, 10\) and targets \(2,\)"):
        motley.run("digits", problem="regression", rounds=1, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert load("digits", {}).problem == "classification"


def test_train_takes_numbers_and_a_loss_of_ones_own() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 5)).astype(np.float32)
    y = x[:, 0] - 2 * x[:, 1]
    settings: dict[str, Any] = {"clients": 4, "cohort": 4, "rounds": 5, "lr": 0.1}
    result = motley.train(nn.Linear(5, 1), (x, y), problem="regression", **settings)
    assert result.scores["r2"] > 0.5
    own = motley.train(nn.Linear(5, 1), (x, y), problem=Problem(pinball, coverage, {"coverage": 1}), **settings)
    assert set(own.scores) == {"coverage", "loss"}
