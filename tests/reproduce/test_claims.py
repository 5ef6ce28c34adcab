"""Claims by hand: leads, shares, somewhere, and Holm's correction; champions beside the papers' methods."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from motley.commands.cli import app
from motley.reproduce import reproduction as spec
from motley.reproduce.champions import beside, best_beside, champions_markdown
from motley.reproduce.claims import compare, holm, judge_all, one_sided
from motley.reproduce.comparison import build
from motley.reproduce.reproduction import Cell, Claim
from motley.reproduce.results import Finished, Results
from motley.runtime.recipe import load
from tests.reproduce.finished_runs import finished


def runs(*values: float) -> list[Finished]:
    return [finished(value, seed) for seed, value in enumerate(values)]


def test_p_values_by_hand() -> None:
    """Mean 2 above 0, standard deviation 1, three values: t = 3.4641, one-sided p = 0.0371."""
    above, below = one_sided([1.0, 2.0, 3.0], 0.0)
    assert above == pytest.approx(0.03709, abs=1e-4)
    assert below == pytest.approx(1 - 0.03709, abs=1e-4)
    assert one_sided([1.0], 0.0) == (1.0, 1.0)
    assert one_sided([2.0, 2.0], 1.0) == (0.0, 1.0)
    assert one_sided([1.0, 1.0], 1.0) == (1.0, 1.0)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_lead_and_a_lead_in_percent() -> None:
    high, low = runs(0.80, 0.81, 0.82), runs(0.60, 0.6095, 0.62)  # 20, 20.05, 20 points: a quarter of the greater
    assert compare("accuracy", high, low, by=19.0).holds is True
    assert compare("accuracy", high, low, by=20.5).holds is False
    assert compare("accuracy", high, low, by=20.0).holds is None
    assert compare("accuracy", high, low, by=23.0, percent_of="greater").holds is True
    assert compare("accuracy", high, low, by=26.0, percent_of="greater").holds is False
    assert compare("accuracy", high, low, by=31.0, percent_of="less").holds is True


def table_of(claims: list[Claim], tmp_path: Path) -> spec.Reproduction:
    path = tmp_path / "claims.toml"
    path.write_text(
        """title = "T"
paper = "P"
seeds = [0, 1, 2]
metrics = ["accuracy"]
[recipe]
data = "digits"
[rows]
"A" = {}
"B" = { lr = 0.5 }
[columns]
"one" = {}
"two" = {}
"""
    )
    return spec.read(str(path)).model_copy(update={"claims": claims})


def test_somewhere_needs_one_place_and_everywhere_all(tmp_path: Path) -> None:
    measured = {
        Cell("A", "one"): runs(0.80, 0.81, 0.82),
        Cell("B", "one"): runs(0.60, 0.61, 0.6201),
        Cell("A", "two"): runs(0.50, 0.51, 0.52),
        Cell("B", "two"): runs(0.60, 0.61, 0.6201),
    }
    order = {"metric": "accuracy", "order": ["A", "B"]}
    everywhere, somewhere = Claim(text="all", **order), Claim(text="some", somewhere=True, by=15, **order)
    nowhere = Claim(text="none", somewhere=True, by=25, **order)
    found = judge_all(table_of([everywhere, somewhere, nowhere], tmp_path), measured)
    assert [one.holds for one in found] == [False, True, False]
    assert all(one.seeds == 3 for one in found)


def test_many_claims_make_each_harder(tmp_path: Path) -> None:
    """t = 5.74, p = 0.03 two-sided: alone it holds, beside others like it nothing can be told."""
    measured = {Cell("A", "one"): runs(0.512, 0.516, 0.522), Cell("B", "one"): runs(0.5, 0.5, 0.5)}
    claim = Claim(text="A", order=["A", "B"], columns=["one"])
    (alone,) = judge_all(table_of([claim], tmp_path), measured)
    many = judge_all(table_of([claim] * 3, tmp_path), measured)
    p = 2 * one_sided([1.2, 1.6, 2.2], 0.0)[0]
    assert alone.p == pytest.approx(p, rel=1e-3)
    assert many[0].p == pytest.approx(3 * p, rel=1e-3)
    assert alone.holds is True
    assert many[0].holds is None
    assert "beside the table's other claims" in many[0].why


# ------------------------------------------------------------------------------------------------ champions


@pytest.mark.parametrize("name", spec.members("champions"))
def test_a_champion_differs_from_the_papers_methods_in_its_method_alone(name: str) -> None:
    made = spec.read(name)
    assert made.champion is not None
    own, rival = Cell(made.champion.name, *made.columns), Cell(list(made.rows)[1], *made.columns)
    recipe = made.recipe_of(own, spec.Draw(3)).model_dump()
    shipped = load(made.champion.recipe).model_dump()
    told = {"name", "summary", "seed"}
    assert {key for key in recipe if recipe[key] != shipped[key]} <= told
    other = made.recipe_of(rival, spec.Draw(3)).model_dump()
    assert {key for key in recipe if recipe[key] != other[key]} <= {"method", "params", "protocol", "options"}
    assert any(claim.best == made.champion.name and not claim.above for claim in made.claims)


def test_champions_share_seeds_with_the_papers_table() -> None:
    made, table = spec.read("champions-rebafl-m50"), spec.read("rebafl-table-1")
    cell = Cell("ReBaFL", "CIFAR-10, m = 50")
    assert {draw.seed for draw in made.draws()} <= {draw.seed for draw in table.draws()}
    assert made.recipe_of(cell, spec.Draw(3)).identity == table.recipe_of(cell, spec.Draw(3)).identity


def measured(folder: Path, values: dict[str, tuple[float, ...]]) -> Results:
    made, kept = spec.read("champions-ama-fes-p75"), Results(folder)
    for cell in made.cells():
        for draw, value in zip(made.draws(), values.get(cell.row, ()), strict=False):
            recipe = made.recipe_of(cell, draw)
            summary = {"accuracy": value, "best_accuracy": value, "rounds": 200, "bytes_up": 10, "virtual_time": 5.0}
            kept.add(
                finished(
                    value, draw.seed, identity=recipe.identity, recipe={}, summary=summary, accuracy=[value, value]
                )
            )
    return kept


def test_a_champion_is_shown_beside_the_papers_best(tmp_path: Path) -> None:
    values = {"FES + ReBaFL + server momentum": (0.9, 0.91), "AMA-FES": (0.8, 0.82), "FedProx": (0.85, 0.84)}
    table = build(spec.read("champions-ama-fes-p75"), measured(tmp_path, values))
    (best,) = best_beside([table])
    assert (best.paper_method, best.seeds, best.wins) == ("FedProx", 2, 2)
    assert best.difference == pytest.approx(6.0)
    assert best.low is not None
    assert best.low < 6 < (best.high or 0)
    assert best.budget == {"rounds": 1.0, "bytes_up": 1.0, "virtual_time": 1.0}
    assert [one.paper_method for one in beside(table)] == ["FedProx", "AMA-FES"]
    assert "| AMA-FES: MNIST, p = 0.75 | FES + ReBaFL + server momentum | FedProx | 90.50 | 84.50 | +6.00 |" in (
        champions_markdown([table])
    )


def test_the_command_gives_rows_of_all_champions(tmp_path: Path) -> None:
    values = {"FES + ReBaFL + server momentum": (0.9, 0.91), "AMA-FES": (0.8, 0.82)}
    measured(tmp_path, values)
    told = CliRunner().invoke(app, ["reproduce", "champions", "--show", "--json", "--results", str(tmp_path)])
    assert told.exit_code == 0, told.output
    content = json.loads(told.stdout.splitlines()[-1])
    (row,) = content["rows"]
    assert {"benchmark", "champion", "paper_method", "difference", "low", "high", "seeds"} <= row.keys()
    assert content["status"] == "partial"
    assert {"claims_hold", "claims_fail", "claims_open", "seeds_min"} <= content.keys()
    page = CliRunner().invoke(app, ["reproduce", "champions", "--show", "--results", str(tmp_path)])
    assert "# Champions" in page.stdout


def test_on_average_judges_the_mean_of_all_differences(tmp_path: Path) -> None:
    """20 points in one place and 4 in the other, seed by seed: 12 on average."""
    measured = {
        Cell("A", "one"): runs(0.80, 0.81, 0.82),
        Cell("B", "one"): runs(0.60, 0.6105, 0.62),
        Cell("A", "two"): runs(0.50, 0.51, 0.52),
        Cell("B", "two"): runs(0.46, 0.4695, 0.48),
    }
    told = {"metric": "accuracy", "order": ["A", "B"], "average": True}
    claims = [Claim(text="more", by=11.5, **told), Claim(text="less", by=12.5, **told)]
    found = judge_all(table_of(claims, tmp_path), measured)
    assert [one.holds for one in found] == [True, False]
    assert "on average: difference +12.00" in found[0].why


def test_shares_of_a_row_stand_beside_the_papers(tmp_path: Path) -> None:
    """Half of A here and 0.6 of it in the paper, whose unit is its own; A itself has no share."""
    made = table_of([], tmp_path).model_copy(
        update={"numbers": {"accuracy": {"A": [5.0, 5.0], "B": [3.0, 3.0]}}, "shares": {"accuracy": {"*": "A"}}}
    )
    kept = Results(tmp_path / "results")
    for row, value in (("A", 0.8), ("B", 0.4)):
        recipe = made.recipe_of(Cell(row, "one"), spec.Draw(0))
        kept.add(finished(value, identity=recipe.identity, recipe={}))
    table = build(made, kept)
    shares = [row for row in table.rows if "share" in row.metric]
    assert {row.row for row in shares} == {"B, one", "B, two"}
    assert [row.measured for row in shares] == [0.5, 0.5]
    assert all(row.paper == 0.6 for row in shares)
    assert all(row.paper is None for row in table.rows if "share" not in row.metric)


def test_a_draw_of_the_data_goes_with_the_seed() -> None:
    made, cell = spec.read("fedsae-table-2"), Cell("FedAvg", "Synthetic(1,1)")
    drawn = [made.recipe_of(cell, spec.Draw(seed)).data for seed in (0, 7)]
    assert drawn == [f"synthetic(alpha=1, beta=1, clients=100, seed={seed})" for seed in (0, 7)]
