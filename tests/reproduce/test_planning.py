"""What is run next: a few seeds for every claim, then those that are expected to decide; by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy.stats import t
from typer.testing import CliRunner

from motley.commands.cli import app
from motley.reproduce import reproduction as spec
from motley.reproduce.campaign import Plan
from motley.reproduce.claims import seeds_needed
from motley.reproduce.comparison import build
from motley.reproduce.planning import open_claims, waves
from motley.reproduce.results import Results
from tests.reproduce.finished_runs import finished

FILE = """
title = "T"
paper = "P"
seeds = [0, 1, 2, 3, 4, 5, 6, 7]
metrics = ["accuracy"]
[recipe]
data = "digits"
model = "logistic"
partition = "iid"
clients = 4
cohort = 2
rounds = 1
[rows]
"A" = {}
"B" = { lr = 0.2 }
"C" = { lr = 0.3 }
"D" = { lr = 0.4 }
[[claims]]
text = "A beats B"
order = ["A", "B"]
[[claims]]
text = "A beats C"
order = ["A", "C"]
"""


@pytest.fixture
def made(tmp_path: Path) -> spec.Reproduction:
    path = tmp_path / "plan.toml"
    path.write_text(FILE)
    return spec.read(str(path))


def keep(made: spec.Reproduction, kept: Results, values: dict[str, list[float]]) -> None:
    for row, own in values.items():
        for seed, value in enumerate(own):
            recipe = made.recipe_of(spec.Cell(row, ""), spec.Draw(seed))
            kept.add(finished(value, seed, identity=recipe.identity, recipe={}))


def test_seeds_needed_by_hand() -> None:
    """The fewest n with 1 > t(0.975, n - 1) * 1 / sqrt(n): 7, since t is 2.571 for 6 and 2.447 for 7 values."""
    assert 2.571 / 6**0.5 > 1 > 2.447 / 7**0.5
    assert seeds_needed(1.0, 1.0, 0.05) == 7
    assert seeds_needed(-1.0, 1.0, 0.05) == 7
    assert seeds_needed(0.0, 1.0, 0.05) is None
    assert seeds_needed(0.001, 1.0, 0.05) is None
    assert float(t.isf(0.025, 6)) == pytest.approx(2.447, abs=1e-3)


def test_first_three_seeds_then_what_decides_then_the_rest(made: spec.Reproduction, tmp_path: Path) -> None:
    kept, plan = Results(tmp_path / "results"), Plan(jobs=1)
    given = waves([made], kept, plan, False, None)
    batch, told = next(given)
    assert {(run.cell, run.recipe.seed) for run in batch} == {(row, seed) for row in "ABC" for seed in range(3)}
    assert told.startswith("2 claims are open: 2 have fewer than 3 seeds (9 runs)")
    # A - B: 2, 2.2, 1.8 points, decided at once; A - C: 1.0, 3.0, 2.5 points, not yet
    keep(made, kept, {"A": [0.6, 0.6, 0.6], "B": [0.58, 0.578, 0.582], "C": [0.59, 0.57, 0.575]})
    needed = {claim.text: claim.needed for claim in build(made, kept).claims}
    assert needed["A beats B"] is None
    more = needed["A beats C"]
    assert more is not None
    batch, told = next(given)
    assert {run.cell for run in batch} == {"A", "C"}
    assert {run.recipe.seed for run in batch} == set(range(3, more))
    assert "1 are expected to be decided by" in told
    keep(made, kept, {"A": [0.6] * more, "C": [0.58 - 0.001 * (i % 3) for i in range(more)]})
    assert open_claims(made, kept, plan, False, None) == []
    rest, told = next(given)
    assert {"D", "B"} <= {run.cell for run in rest}
    assert told.startswith("0 claims are open")
    with pytest.raises(StopIteration):
        next(given)


def test_a_claim_too_close_to_call_is_said_to_be_so(made: spec.Reproduction, tmp_path: Path) -> None:
    kept = Results(tmp_path / "results")
    keep(made, kept, {"A": [0.6, 0.5, 0.7], "B": [0.61, 0.48, 0.7], "C": [0.5, 0.401, 0.6]})
    (claim,) = open_claims(made, kept, Plan(), False, None)
    assert (claim.text, claim.identities, claim.first) == ("A beats B", (), False)


def test_the_command_within_a_budget(made: spec.Reproduction, tmp_path: Path) -> None:
    folders = ["--results", str(tmp_path / "results"), "--cache", str(tmp_path / "cache")]
    asked = ["reproduce", str(tmp_path / "plan.toml"), "--budget", "100", "--seeds", "0,1", "--json", *folders]
    told = CliRunner().invoke(app, asked)
    assert told.exit_code == 0, told.output
    content = json.loads(told.stdout.splitlines()[-1])
    assert content["missing_runs"] == 0
    assert content["claims_hold"] + content["claims_fail"] + content["claims_open"] == 2
    assert content["seeds_min"] == 2
    assert "claims are open" in told.stderr
    shown = CliRunner().invoke(app, ["reproduce", str(tmp_path / "plan.toml"), "--show", "--seeds", "0,1", *folders])
    assert "with Holm's correction" in shown.stdout


def test_the_list_tells_of_every_papers_claims(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["reproduce", "--results", str(tmp_path)])
    assert "ama-fes: 0 hold, 0 do not" in told.stdout
    listed = CliRunner().invoke(app, ["reproduce", "--json", "--results", str(tmp_path)])
    rows = json.loads(listed.stdout.splitlines()[-1])
    assert all({"claims_hold", "claims_fail", "claims_open", "seeds_min"} <= row.keys() for row in rows)
