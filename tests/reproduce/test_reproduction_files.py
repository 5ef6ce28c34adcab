"""Reproductions as files: what they may say, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from motley.core.errors import RecipeError, UnknownNameError
from motley.reproduce import reproduction as spec
from motley.runtime.experiment import prepare
from tests.reproduce.finished_runs import TINY


def test_a_file_may_take_rows_and_columns_of_another(tiny: str, tmp_path: Path) -> None:
    base = spec.read(tiny)
    row, column = list(base.rows)[-1], list(base.columns)[-1]
    part = tmp_path / "part.toml"
    part.write_text(f'extends = "tiny"\ntitle = "Part"\nrows = ["{row}"]\ncolumns = ["{column}"]\nadds = "More."\n')
    made = spec.read(str(part))
    assert made.cells() == [spec.Cell(row, column)]
    whole, some = (one.recipe_of(spec.Cell(row, column), spec.Draw(1)) for one in (base, made))
    assert whole.identity == some.identity
    assert made.note == base.note + "More."
    assert base.claims
    assert (made.numbers, made.claims, made.baseline) == ({}, [], None)
    part.write_text('extends = "tiny"\nrows = ["B"]\n[columns]\n"three" = { epochs = 3 }\n')
    assert spec.read(str(part)).cells() == [spec.Cell("B", "three")]
    bad = {'extends = "tiny"\nrows = []\n': "None of the rows", 'extends = "part"\n': "extends itself"}
    for text, told in bad.items():
        part.write_text(text)
        with pytest.raises(RecipeError, match=told):
            spec.read(str(part))
    part.write_text('extends = "tiny"\nrows = ["Z"]\n')
    with pytest.raises(UnknownNameError, match=r"rows that .* extends named 'Z'"):
        spec.read(str(part))


@pytest.mark.parametrize("name", spec.names())
@pytest.mark.parametrize("quick", [False, True])
def test_every_recipe_that_ships_is_valid(name: str, quick: bool) -> None:
    """Names of methods, models, fleets and partitions exist, and seeds differ in nothing else."""
    from motley.core.registry import parse
    from motley.data.partitioning import PARTITIONS
    from motley.fleet.layers import FLEETS
    from motley.methods import make_method

    made = spec.read(name)
    assert made.cells(quick)
    for cell in made.cells(quick):
        recipe = made.recipe_of(cell, spec.Draw(3), quick)
        method = make_method(recipe.method, recipe.params)
        assert recipe.public or not any("public" in part.needs for part in method.parts)
        for call in parse(recipe.fleet):
            assert set(call.arguments) <= set(FLEETS[call.name].parameters)
        (call,) = parse(recipe.partition)
        assert set(call.arguments) <= set(PARTITIONS[call.name].parameters)
        assert recipe.seed == 3
    keys = [made.recipe_of(cell, spec.Draw(seed), quick).identity for cell in made.cells(quick) for seed in (0, 1)]
    assert len(set(keys)) == len(keys)


def test_papers_numbers_are_those_of_table_1() -> None:
    made = spec.read("rebafl-table-1")
    assert made.paper_value(spec.Cell("ReBaFL", "CIFAR-10, m = 20"), "accuracy") == 58.49
    assert made.paper_value(spec.Cell("Scaffold", "Fashion-MNIST, m = 50"), "best_accuracy") == 65.62
    assert made.paper_value(spec.Cell("Scaffold", "Fashion-MNIST, m = 50"), "stability") is None


def test_tables_share_their_runs() -> None:
    """Table 2's baseline is Table 1's FedAvg on CIFAR-10 with 20 clients."""
    one = spec.read("rebafl-table-1").recipe_of(spec.Cell("FedAvg", "CIFAR-10, m = 20"), spec.Draw(0))
    two = spec.read("rebafl-table-2").recipe_of(spec.Cell("neither", "Pathological"), spec.Draw(0))
    assert one.identity == two.identity


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('best = "B"', 'best = "C"', UnknownNameError),
        ('"A" = [50.0, nan]', '"A" = [50.0]', RecipeError),
        ("seeds = [0, 1]", "", RecipeError),
        ("title", "titel", RecipeError),
        ("[quick]", "[quick", RecipeError),
    ],
)
def test_a_wrong_file_is_refused_with_a_sentence(tmp_path: Path, old: str, new: str, error: type[Exception]) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(TINY.replace(old, new, 1))
    with pytest.raises(error):
        spec.read(str(path))


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="rebafl-table-1"):
        spec.read("rebafl-table1")


@pytest.mark.parametrize("name", [name for name in spec.names() if not name.startswith("rebafl")])
def test_every_claim_can_be_decided(name: str) -> None:
    """One run of a place never tells; and a target that is missed must not hide who reached it."""
    made = spec.read(name)
    assert made.claims
    assert len(made.draws()) >= 3
    for claim in made.claims:
        assert claim.order or claim.best
        assert "_to(" not in claim.metric or "capped=true" in claim.metric


def test_a_reproductions_data_are_alike_for_all_methods(tiny: str) -> None:
    """All methods of one seed meet the same clients."""
    made = spec.read(tiny)
    parts = [prepare(made.recipe_of(cell, spec.Draw(1))).data.partition.index for cell in made.cells()]
    assert all(torch.equal(torch.from_numpy(parts[0]), torch.from_numpy(part)) for part in parts)
