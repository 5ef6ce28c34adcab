"""The reproductions of RADFed: every place has a recipe that can be read, folds and seeds are drawn as said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from motley.core.errors import UnknownNameError
from motley.methods import METHODS, make_method
from motley.reproduce.metrics import measure
from motley.reproduce.reproduction import PAPERS, Cell, Draw, names, read
from motley.reproduce.results import Finished
from motley.runtime.recipe import load
from motley.runtime.recipe import names as recipe_names

FILES = [name for name in names() if name.startswith("radfed-")]


@pytest.mark.parametrize("name", FILES)
def test_every_place_has_a_recipe(name: str) -> None:
    made = read(name)
    for quick in (False, True):
        for cell in made.cells(quick):
            for draw in made.draws(quick):
                recipe = made.recipe_of(cell, draw, quick)
                assert recipe.split == "by_clients(folds=5)"
                if not recipe.method.startswith("fedasync") or "fedasync" in METHODS:
                    make_method(recipe.method)


def test_all_tables_and_figures_are_there() -> None:
    assert FILES == ["radfed-fig-2", "radfed-fig-3", "radfed-fig-4", "radfed-fig-5", "radfed-fig-6",
                     "radfed-shakespeare-long", "radfed-table-1", "radfed-table-3",
                     "radfed-table-3-released"]  # fmt: skip


def test_more_rounds_on_shakespeare_and_all_else_as_in_the_table() -> None:
    table, long = read("radfed-table-3"), read("radfed-shakespeare-long")
    for row in ("FedAvg", "RADFed"):
        short, more = (long.recipe_of(Cell(row, f"{n} rounds"), Draw(0, 2)) for n in (200, 600))
        assert short.identity == table.recipe_of(Cell(row, "Shakespeare"), Draw(0, 2)).identity
        assert load(more, {"rounds": 200}).identity == short.identity


def test_folds_and_seeds() -> None:
    made = read("radfed-table-3")
    assert made.draws() == [Draw(0, fold) for fold in range(5)]
    assert made.draws(seeds=[3, 4])[-1] == Draw(4, 4)
    assert made.draws(quick=True) == [Draw(0, 0)]
    recipe = made.recipe_of(Cell("RADFedi", "Shakespeare"), Draw(2, 3))
    assert (recipe.seed, recipe.fold, recipe.data_seed) == (2, 3, 0)
    assert recipe.method == "radfedi(S=100, gamma=0.8)"
    plain = read("rebafl-table-1")
    assert plain.draws() == [Draw(seed) for seed in plain.seeds]


def test_paper_numbers_are_absolute() -> None:
    made = read("radfed-table-3")
    assert made.paper_value(Cell("FedAvg", "Cifar10"), "validated") == 82.88
    assert made.paper_value(Cell("RADFed", "Cifar10"), "validated") == pytest.approx(82.88 * 1.0274, abs=0.01)
    assert made.paper_value(Cell("RADFed", "eICU, hospitals"), "validated") is None


def test_recipes_are_those_of_the_table() -> None:
    """`motley run radfed/NAME` and the row RADFed of Table III train the same."""
    made = read("radfed-table-3")
    columns = {"mnist_1": "MNIST-1", "mnist_01": "MNIST-0.1", "cifar10": "Cifar10", "shakespeare": "Shakespeare",
               "covcls_g": "COVCLS-G", "covcls_l": "COVCLS-L", "covfeat_g": "COVFEAT-G", "covfeat_l": "COVFEAT-L",
               "eicu": "eICU", "eicu_hospitals": "eICU, hospitals"}  # fmt: skip
    assert {name for name in recipe_names() if name.startswith("radfed/")} == {f"radfed/{name}" for name in columns}
    for name, column in columns.items():
        assert load(f"radfed/{name}").identity == made.recipe_of(Cell("RADFed", column), Draw(0, 0)).identity


def _run(data: str, **summary: object) -> Finished:
    return Finished("r", "c", "i", 0, False, {"data": data}, dict(summary), [], [], {"v": [0.0, 0.5, 0.6, 0.5]})


def test_metrics() -> None:
    chosen = {
        "accuracy": {"round": 1, "validation": 0.5, "test": 0.4},
        "weighted_f1": {"round": 2, "validation": 0.5, "test": 0.3},
    }
    assert measure("validated", _run("mnist", validated=chosen)) == 40.0
    assert measure("validated", _run("covertype", validated=chosen)) == 30.0
    assert measure("validated", _run("eicu", validated=chosen)) is None
    assert measure("validated", _run("mnist")) is None
    assert measure("wobble(name='v')", _run("mnist")) == pytest.approx(10.0)
    assert measure("wobble(name='none')", _run("mnist")) is None


def test_a_place_that_does_not_exist(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text((PAPERS / "radfed-fig-2.toml").read_text() + '\n[places."RADFed, COVFEAT"]\nlr = 0.1\n')
    shutil.copy(PAPERS / "radfed-table-3.toml", tmp_path)  # of which it takes some rows
    with pytest.raises(UnknownNameError, match=r"no place of the reproduction 'wrong' named 'RADFed, COVFEAT'"):
        read(str(wrong))
