"""Recipes: validated, overridable, written back as they were, and hashed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from motley.core.errors import InputError, PartitionError, RecipeError, UnknownNameError
from motley.runtime import recipe as recipes
from motley.runtime.experiment import prepare
from motley.runtime.launch import new_folder, run
from motley.runtime.recipe import WITHOUT_EFFECT, Recipe, load

ODD: list[dict[str, Any]] = [
    {},
    {"clients": None},
    {"name": 'quotes " and \\ and é 😀 \t \x7f', "summary": "two\nlines"},
    {"params": {"fedprox": {"mu": 0.1, "partial": True}, "x": {"list": [1, 2.5, "a"], "deep": {"y": float("inf")}}}},
    {"options": {"wait": 3, "odd key": -float("inf"), "é": "ü"}},
    {"deadline": 1e-7, "lr": 1e22, "skew": "rotation(degrees=3)", "protocol": "late"},
]


@pytest.mark.parametrize("changes", ODD, ids=str)
def test_toml_gives_the_recipe_back(changes: dict[str, Any], tmp_path: Path) -> None:
    recipe = Recipe(**changes)
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml(), encoding="utf-8")
    assert load(path) == recipe
    assert load(path).identity == recipe.identity
    left_out = set(Recipe.model_fields) - set(tomllib.loads(recipe.to_toml()))
    assert all(not Recipe.model_fields[key].get_default(call_default_factory=True) for key in left_out)


def test_overrides() -> None:
    recipe = load(
        "digits",
        ["rounds=7", "lr=1e-2", "method=fedprox+ama", "params.fedprox.mu=0.5", "clients=none", "deadline=none",
         "options.wait=2", "params.ama.alpha0=0.3", "evaluate_every=2"],
    )  # fmt: skip
    assert (recipe.rounds, recipe.lr, recipe.method, recipe.clients) == (7, 0.01, "fedprox+ama", None)
    assert recipe.params == {"fedprox": {"mu": 0.5}, "ama": {"alpha0": 0.3}}
    assert recipe.options == {"wait": 2}
    assert recipe.name == "digits"
    assert load(recipe, {"seed": 3}).seed == 3
    assert recipe.seed == 0


def test_overrides_leave_the_source_alone() -> None:
    source = {"params": {"fedprox": {"mu": 0.1}}}
    load(source, ["params.fedprox.mu=0.9"])
    assert source == {"params": {"fedprox": {"mu": 0.1}}}


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["rounds=0"], RecipeError, r"Recipe key 'rounds' is '0': input should be greater than or equal to 1"),
        (["rounds=many"], RecipeError, r"Recipe key 'rounds' is 'many'"),
        (["lr=-1"], RecipeError, r"'lr'"),
        (["lr=nan"], RecipeError, r"'lr'"),
        (["rounds=none"], RecipeError, r"'rounds'"),
        (["on_bad_update=ignore"], RecipeError, r"'on_bad_update' is 'ignore'.*'stop' or 'drop'"),
        (["rouds=3"], UnknownNameError, r"no recipe key named 'rouds'; did you mean 'rounds'\?"),
        (["rounds"], RecipeError, r"'rounds' is not an override; write key=value"),
        (["data.x=3"], RecipeError, r"only params and options have keys below them"),
    ],
)
def test_bad_values_name_the_key(overrides: list[str], error: type[InputError], message: str) -> None:
    with pytest.raises(error, match=message):
        load("digits", overrides)


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["method=fedavgg"], UnknownNameError, "did you mean 'fedavg"),
        (["data=digit"], UnknownNameError, "no data set named 'digit'; did you mean 'digits'"),
        (["model=mlpp"], UnknownNameError, "no model named 'mlpp'; did you mean 'mlp'"),
        (["partition=dirichle"], UnknownNameError, "did you mean 'dirichlet'"),
        (["optimizer=sdg"], UnknownNameError, "did you mean 'sgd'"),
        (["protocol=synchronus"], UnknownNameError, "did you mean 'synchronous'"),
        (["clients=100000", "partition=iid"], PartitionError, "client"),
    ],
)
def test_names_that_do_not_exist_are_told_with_the_nearest(
    overrides: list[str], error: type[InputError], message: str
) -> None:
    with pytest.raises(error, match=message):
        prepare(load("digits", overrides))


def test_unknown_executor() -> None:
    with pytest.raises(UnknownNameError, match="no executor named 'pol'; did you mean 'pool'"):
        run("digits", executor="pol")


def test_recipes_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="no recipe named 'digit'; did you mean 'digits'"):
        load("digit")
    with pytest.raises(RecipeError, match="There is no recipe file"):
        load(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("rounds = ")
    with pytest.raises(RecipeError, match="is not valid TOML"):
        load(broken)
    assert "digits" in recipes.names()


def test_identity_is_what_decides_the_result() -> None:
    base = load("digits")
    other: dict[str, Any] = {
        "name": "x", "summary": "y", "executor": "pool", "workers": 3, "device": "cpu", "checkpoint_seconds": 1.0,
        "state_memory_mb": 5.0, "diagnostics": ["divergence"], "imports": ["json"],
        "track": "tensorboard", "events": True,
    }  # fmt: skip
    assert set(other) == set(WITHOUT_EFFECT)
    for key, value in other.items():
        assert load(base, {key: value}).identity == base.identity, key
    for key in ("rounds", "seed", "cohort", "batch_size", "clients", "evaluate_every"):
        assert load(base, {key: (getattr(base, key) or 0) + 1}).identity != base.identity, key
    for change in ({"method": "fedprox"}, {"params.fedavg.weighted": False}, {"lr": 0.01}, {"data": "mnist"}):
        assert load(base, change).identity != base.identity
    assert load(base, {"epochs": 5}).identity == load(base, {"epochs": 5.0}).identity


def test_directories_do_not_collide(tmp_path: Path) -> None:
    recipe = load("digits")
    first, second = new_folder(recipe, tmp_path), new_folder(recipe, tmp_path)
    assert first != second
    assert recipe.identity in first.name
    odd = load(recipe, {"method": "fedprox(mu=0.1)+ama(alpha0=0.5)", "name": "a/b"})
    assert new_folder(odd, tmp_path).parent == tmp_path
