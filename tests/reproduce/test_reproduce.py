"""Reproductions: files, finished runs, tables, claims, the engine and the command."""

from __future__ import annotations

import json
import math
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from motley.commands.cli import app
from motley.core.errors import InputError, MemoryFullError, RecipeError, UnknownNameError
from motley.reproduce import campaign as engine
from motley.reproduce import reproduction as spec
from motley.reproduce.campaign import Plan, WantedRun, carry_out, matching, run_all, wanted_runs
from motley.reproduce.claims import compare, interval
from motley.reproduce.comparison import Table, against, build
from motley.reproduce.metrics import bounds, measure
from motley.reproduce.pages import ACCURACY, BY_SPEED, markdown, picture, points
from motley.reproduce.results import Finished, Results, exported, imported
from motley.runtime.experiment import prepare
from motley.runtime.recipe import load
from motley.runtime.records import Record

TINY = """
title = "Tiny"
paper = "Nobody, Table 0"
seeds = [0, 1]
metrics = ["accuracy", "best_accuracy", "recorded(name='diversity')"]
also = { best_accuracy = "accuracy" }
[recipe]
data = "digits"
partition = "classes(per_client=2)"
clients = 6
cohort = 3
rounds = 3
model = "logistic"
diagnostics = ["diversity"]
[rows]
"A" = { method = "fedavg" }
"B" = { method = "rebafl" }
[columns]
"one" = {}
"two" = { epochs = 2 }
[numbers.accuracy]
"A" = [50.0, nan]
[[claims]]
text = "B beats A"
best = "B"
[[claims]]
text = "More is better"
order = ["two", "one"]
rows = ["A"]
[quick]
columns = ["one"]
recipe = { rounds = 1 }
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return str(path)


def finished(value: float, seed: int = 0, **changes: Any) -> Finished:
    content: dict[str, Any] = {
        "reproduction": "tiny",
        "cell": "A, one",
        "identity": f"x{value}{seed}",
        "seed": seed,
        "quick": False,
        "recipe": {},
        "summary": {"accuracy": value, "best_accuracy": value},
        "rounds": [1, 2, 3],
        "accuracy": [0.1, 0.5, value],
        **changes,
    }
    return Finished(**content)


# ------------------------------------------------------------------------------------------------ files


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


# ------------------------------------------------------------------------------------------------ numbers


def test_metrics_by_hand() -> None:
    run = finished(0.9, extra={"diversity": [1.0, 2.0, 6.0]})
    assert measure("accuracy", run) == pytest.approx(90)
    assert measure("mean_accuracy(last=2)", run) == pytest.approx(70)
    assert measure("stability(last=2)", run) == pytest.approx(800)
    assert measure("rounds_to(target=0.4)", run) == 2
    assert measure("rounds_to(target=0.99)", run) is None
    assert measure("rounds_to(target=0.99, capped=true)", run) == 3  # at least as many
    timed = finished(0.9, times=[1.0, 2.5, 4.0])
    assert measure("time_to(target=0.4)", timed) == 2.5
    assert measure("time_to(target=0.99)", timed) is None
    assert measure("time_to(target=0.99, capped=true)", timed) == 4.0
    assert measure("recorded(name='diversity')", run) == 3.0
    assert measure("recorded(name='diversity', last=2)", run) == 4.0
    assert measure("recorded(name='other')", run) is None
    stopped = finished(0.9, extra={"dc": [1.0, 3.0, None]})
    assert measure("recorded(name='dc')", stopped) is None
    assert measure("recorded(name='dc', last=1)", stopped) is None
    assert measure("wobble(name='dc')", stopped) is None
    assert [math.isnan(value) for value in points(stopped, "dc")[1]] == [False, False, True]
    assert measure("summary(name='accuracy')", run) == 0.9
    assert measure("advantage", run) is None
    fair = finished(0.9)
    fair.summary["fairness"] = {"chosen_by_speed": [1.0, *[2.0] * 8, 3.0]}
    assert measure("advantage", fair) == pytest.approx(1.5 - 0.5)


def test_interval_by_hand() -> None:
    """t(0.975, 2) = 4.3027: mean 2, standard deviation 1, three values."""
    low, high = interval([1.0, 2.0, 3.0])
    assert (low, high) == (pytest.approx(2 - 4.3027 / 3**0.5, abs=1e-3), pytest.approx(2 + 4.3027 / 3**0.5, abs=1e-3))
    assert interval([1.0]) == (None, None)
    assert interval([1.0, 99.0], bounds("accuracy")) == (0.0, 100.0)
    assert interval([0.1, 5.0], bounds("stability(last=5)"))[0] == 0.0
    assert bounds("recorded(name='diversity')") == (-math.inf, math.inf)


def test_comparison_is_by_seed_and_honest() -> None:
    high = [finished(0.50 + 0.1 * seed, seed) for seed in range(3)]
    low = [finished(0.48 + 0.1 * seed + 0.001 * seed, seed) for seed in range(3)]
    assert compare("accuracy", high, low)[0] is True
    assert compare("accuracy", low, high)[0] is False
    assert compare("accuracy", high, list(reversed(high)))[0] is None
    assert compare("accuracy", high[:1], low)[0] is None
    assert compare("accuracy", [], low)[:2] == (None, None)


def test_curves_are_of_all_rounds_or_of_the_evaluated_ones(tiny: str, tmp_path: Path) -> None:
    run = finished(0.9, extra={"every": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "some": [1.0, 2.0, 3.0]}, rounds=[2, 4, 6])
    assert points(run, ACCURACY) == ([2, 4, 6], [10.0, 50.0, 90.0])
    assert points(run, "every")[0] == [1, 2, 3, 4, 5, 6]
    assert points(run, "some") == ([2, 4, 6], [1.0, 2.0, 3.0])
    assert points(run, BY_SPEED) == ([], [])
    fair = replace(run, summary={**run.summary, "fairness": {"chosen_by_speed": [1.0, 3.0]}})
    assert points(fair, BY_SPEED) == ([1, 2], [0.5, 1.5])
    made = spec.read(tiny).model_copy(update={"curves": ["every", "some", "none"]})
    results = Results(tmp_path)
    key = made.recipe_of(made.cells()[0], made.draws()[0]).identity
    results.add(replace(run, identity=key, recipe={"diagnostics": ["diversity"], "rounds": 6}))
    picture(build(made, results), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    picture(build(made.model_copy(update={"curves": ["none"]}), results), tmp_path / "dots.png")  # nothing to draw
    assert (tmp_path / "dots.png").stat().st_size < (tmp_path / "picture.png").stat().st_size


def test_many_columns_are_drawn_below_each_other(tiny: str, tmp_path: Path) -> None:
    six: dict[str, Any] = {"columns": {f"column {i}": {} for i in range(6)}, "places": {}, "numbers": {}, "claims": []}
    few = spec.read(tiny).model_copy(update=six)
    many = few.model_copy(update={"columns": {f"column {i}": {} for i in range(8)}})
    sizes = []
    for made in (few, many):
        picture(build(made, Results(tmp_path)), tmp_path / "picture.png")
        sizes.append(struct.unpack(">II", (tmp_path / "picture.png").read_bytes()[16:24]))
    assert sizes[1][0] == sizes[0][0]
    assert sizes[1][1] > 1.9 * sizes[0][1]


def test_a_margin_allows_a_small_loss() -> None:
    high = [finished(0.50 + 0.1 * seed, seed) for seed in range(3)]
    low = [finished(0.48 + 0.1 * seed + 0.001 * seed, seed) for seed in range(3)]  # 1.8 to 2 points below
    assert compare("accuracy", low, high, margin=3.0)[0] is True
    assert compare("accuracy", low, high, margin=1.0)[0] is False
    assert compare("accuracy", low, high, margin=1.9)[0] is None


@pytest.mark.parametrize("name", [name for name in spec.names() if not name.startswith("rebafl")])
def test_every_claim_can_be_decided(name: str) -> None:
    """One run of a place never tells; and a target that is missed must not hide who reached it."""
    made = spec.read(name)
    assert made.claims
    assert len(made.draws()) >= 3
    for claim in made.claims:
        assert claim.order or claim.best
        assert "_to(" not in claim.metric or "capped=true" in claim.metric


# ------------------------------------------------------------------------------------------------ store and engine


def test_runs_are_made_once_and_shown_again(tiny: str, tmp_path: Path) -> None:
    made, results = spec.read(tiny), Results(tmp_path / "results")
    plan = Plan(cache=tmp_path / "cache")
    todo = wanted_runs([made], results, plan)
    assert [wanted_run.recipe.seed for wanted_run in todo] == [0] * 4 + [1] * 4
    assert build(made, results).status == "none"
    for run in run_all(todo, plan, lambda *_: None):
        results.add(run)
    assert wanted_runs([made], results, plan) == []
    again = Results(tmp_path / "results")
    table = build(made, again)
    assert table.status == "full"
    first = table.rows[0]
    assert (first.row, first.metric, first.paper, first.seeds) == ("A, one", "accuracy", 50.0, 2)
    assert first.low is not None
    assert first.measured is not None
    assert first.difference == pytest.approx(first.measured - 50.0, abs=1e-3)
    assert [claim.text for claim in table.claims] == ["B beats A", "More is better"]
    assert build(made, again, seeds=[0, 7]).status == "partial"
    assert wanted_runs([made], again, plan, quick=True) != []


def test_export_and_import(tmp_path: Path) -> None:
    runs = [finished(0.5), finished(0.6, 1)]
    exported(tmp_path / "out", runs)
    with (tmp_path / "out" / "runs.jsonl").open("a") as file:
        file.write('{"cut off')
    assert list(imported(tmp_path / "out")) == runs
    results = Results(tmp_path / "results")
    assert results.take_in(tmp_path / "out") == 2
    assert results.take_in(tmp_path / "out") == 0
    assert len(list((tmp_path / "results" / "tiny" / "runs").glob("*.json"))) == 2


def test_a_run_without_a_needed_diagnostic_does_not_count(tmp_path: Path) -> None:
    recipe = load("digits", {"diagnostics": ["diversity"]})
    results = Results(tmp_path)
    results.add(finished(0.5, identity=recipe.identity))
    assert results.find(recipe) is None
    results.add(finished(0.5, identity=recipe.identity, recipe={"diagnostics": ["diversity", "per_class"]}))
    assert results.find(recipe) is not None


def test_no_run_starts_after_the_budget(tiny: str, tmp_path: Path) -> None:
    made, results = spec.read(tiny), Results(tmp_path / "results")
    plan = Plan(budget=1e-9, cache=tmp_path / "cache")
    assert list(run_all(wanted_runs([made], results, plan), plan, lambda *_: None)) == []


def test_a_paused_run_goes_on_to_the_same_result(tiny: str, tmp_path: Path) -> None:
    recipe = load(spec.read(tiny).recipe_of(spec.Cell("B", "one"), spec.Draw(0)), {"checkpoint_seconds": 0})
    whole = carry_out(WantedRun("tiny", "B, one", False, recipe, tmp_path / "whole"))
    told: list[str] = []
    plan = Plan(budget=60.0, grace=-60.0)
    paused = WantedRun("tiny", "B, one", False, recipe, tmp_path / "paused")
    assert list(run_all([paused], plan, lambda *seen: told.append(seen[2]))) == []
    assert "paused" in told[0]
    assert (tmp_path / "paused" / "rounds.jsonl").read_text().count("\n") == 1
    assert carry_out(paused).accuracy == whole.accuracy


def test_a_run_that_diverges_is_recorded_as_guessing(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load(
        spec.read(tiny).recipe_of(spec.Cell("A", "one"), spec.Draw(0)),
        {"method": "fedavgm(lr=1e12)", "model": "mlp", "rounds": 9},
    )
    wanted_run = WantedRun("tiny", "A, one", False, recipe, tmp_path / "run")
    run = carry_out(wanted_run)
    assert run.summary["accuracy"] == pytest.approx(0.1)
    assert run.summary["diverged"] > 1
    assert len(run.accuracy) == 9
    assert "validated" not in run.summary
    monkeypatch.setattr(engine, "pick", lambda _: "meta")
    assert engine.diverged(wanted_run).params.is_meta, "it says where it was made"


def test_a_run_that_diverges_keeps_the_round_that_validation_chose(tiny: str, tmp_path: Path) -> None:
    recipe = load(
        spec.read(tiny).recipe_of(spec.Cell("A", "one"), spec.Draw(0)),
        {"split": "by_clients(folds=5)", "evaluate_every": 4, "rounds": 10},
    )
    wanted_run = WantedRun("tiny", "A, one", False, recipe, tmp_path / "run")
    bare = Record(1, 0.0, 0.0, 1, 1, 0, 0, 0, 0)
    seen = [
        replace(bare, round=4, scores={"accuracy": 0.7}, extra={"validation_accuracy": 0.8, "validation_loss": 0.5}),
        replace(bare, round=6),
    ]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rounds.jsonl").write_text("".join(record.to_line() + "\n" for record in seen))
    result = engine.diverged(wanted_run)
    assert result.summary["validated"]["accuracy"] == {"round": 4, "validation": 0.8, "test": 0.7}
    assert [record.round for record in result.records if record.accuracy is not None] == [4, 8, 10]
    assert result.summary["diverged"] == 7


def test_rows_beside_a_baseline(tmp_path: Path) -> None:
    """Relative differences by hand, and the p-values of the signed-rank test; the mean over the paper's columns."""
    made = spec.read("radfed-table-3").model_copy(
        update={
            "rows": {"A": {}, "B": {}},
            "columns": {"x": {}, "y": {}, "z": {}},
            "baseline": "A",
            "metrics": ["accuracy"],
            "numbers": {"accuracy": {"A": [1.0, 2.0, math.nan]}},
        }
    )
    scores = {("A", "x"): [0.4, 0.5, 0.6], ("B", "x"): [0.5, 0.6, 0.4], ("A", "y"): [0.5], ("B", "y"): [0.6],
              ("A", "z"): [0.5], ("B", "z"): [0.9]}  # fmt: skip
    runs = {spec.Cell(*place): [finished(v, seed) for seed, v in enumerate(found)] for place, found in scores.items()}
    found = {(one.row, one.column): one for one in against(made, runs)}
    assert set(found) == {("B", "x"), ("B", "y"), ("B", "z"), ("B", None)}
    assert found["B", "x"].relative == pytest.approx(0.0, abs=1e-9)
    assert found["B", "x"].p == 1.0
    assert found["B", "y"].relative == pytest.approx(20.0)
    assert found["B", None].relative == pytest.approx(10.0), "z is not in the paper"
    assert found["B", None].pairs == 4
    page = markdown(Table(made, False, runs, [], [], 0, list(found.values())))
    assert "| | x | y | z | mean |" in page
    assert "| B | +0.00 (1.00) | +20.00 (1.00) | +80.00 (1.00) | +10.00" in page
    assert against(made.model_copy(update={"baseline": None}), runs) == []


def test_one_failure_leaves_the_others_be(tiny: str, tmp_path: Path) -> None:
    made = spec.read(tiny)
    good = made.recipe_of(spec.Cell("A", "one"), spec.Draw(0))
    bad = load(good, {"method": "no_such_method"})
    told: list[str] = []
    work = [WantedRun("tiny", "x", False, r, tmp_path / str(i)) for i, r in enumerate((bad, good))]
    done = list(run_all(work, Plan(), lambda *seen: told.append(seen[2])))
    assert len(done) == 1
    assert "no_such_method" in told[0]


def test_a_run_without_memory_beside_others_is_tried_again(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first never fits, the second only alone, the third always."""
    recipe = spec.read(tiny).recipe_of(spec.Cell("A", "one"), spec.Draw(0))
    work = [WantedRun("tiny", name, False, recipe, tmp_path / name) for name in ("never", "alone", "beside")]
    done, calls = carry_out(replace(work[2], folder=tmp_path / "made")), []

    def tried(wanted_run: WantedRun) -> Finished:
        calls.append(wanted_run.cell)
        if wanted_run.cell == "never" or (wanted_run.cell == "alone" and calls.count("alone") == 1):
            raise MemoryFullError("full") if wanted_run.cell == "never" else torch.OutOfMemoryError("full")
        return replace(done, cell=wanted_run.cell)

    monkeypatch.setattr(engine, "carry_out", tried)
    monkeypatch.setattr("motley.runtime.parallel_runs.ProcessPoolExecutor", lambda n, mp_context: ThreadPoolExecutor(n))
    told: list[tuple[str, str]] = []
    made = list(run_all(work, Plan(jobs=2), lambda wanted_run, _, trouble: told.append((wanted_run.cell, trouble))))
    assert [run.cell for run in made] == ["beside", "alone"]
    assert calls.count("never") == 2
    assert ("never", "full") in told, "the second time it is a failure"
    assert sum("tried again" in trouble for _, trouble in told) == 2


def test_a_reproductions_data_are_alike_for_all_methods(tiny: str) -> None:
    """All methods of one seed meet the same clients."""
    made = spec.read(tiny)
    parts = [prepare(made.recipe_of(cell, spec.Draw(1))).data.partition.index for cell in made.cells()]
    assert all(torch.equal(torch.from_numpy(parts[0]), torch.from_numpy(part)) for part in parts)


# ------------------------------------------------------------------------------------------------ the command


def call(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["reproduce", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_the_list_for_machines(tmp_path: Path) -> None:
    rows = json.loads(call("--json", "--results", str(tmp_path)).stdout.splitlines()[-1])
    assert {row["name"] for row in rows} == set(spec.names())
    assert all(row["status"] == "none" and row["paper"] for row in rows)


def test_the_list_counts_a_run_per_seed_and_fold(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reproduce", "--json", "--results", str(tmp_path)], catch_exceptions=False)
    rows = {row["name"]: row for row in json.loads(result.stdout.splitlines()[-1])}
    assert rows["radfed-table-3"]["runs"] == 100 * 5
    assert all(row["missing_runs"] == row["runs"] for row in rows.values())  # nothing was run yet


def test_only_some_places_are_run(tiny: str, tmp_path: Path) -> None:
    wanted = wanted_runs([spec.read(tiny)], Results(tmp_path), Plan())
    assert [wanted_run.cell for wanted_run in matching(wanted, ["B, "])] == ["B, one", "B, two"] * 2
    assert matching(wanted, []) == wanted
    assert matching([], ["B, "]) == []
    with pytest.raises(InputError, match="'C or D'; those missing are: A, one; A, two; B, one; B, two"):
        matching(wanted, ["C", "D"])


def test_quick_says_so_and_show_only_reads(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = call(tiny, "--quick").stdout
    assert "Small version" in text
    place = tmp_path / "results" / "tiny" / "quick"
    assert {path.name for path in place.iterdir()} == {"runs", "table.md", "table.json", "table.png"}
    shown = json.loads(call(tiny, "--quick", "--show", "--json").stdout.splitlines()[-1])
    assert shown["status"] == "full"
    assert {"row", "metric", "paper", "measured", "low", "high", "seeds", "device"} <= set(shown["rows"][0])
    assert [claim["text"] for claim in shown["claims"]] == ["B beats A"]
    assert {"text", "holds"} <= set(shown["claims"][0])
    full = json.loads(call(tiny, "--show", "--json").stdout.splitlines()[-1])
    assert full["status"] == "none"
    assert full["rows"][0]["measured"] is None
    assert full["claims"][0]["holds"] is None


def test_wrong_seeds_are_a_sentence(tiny: str) -> None:
    with pytest.raises(InputError, match="whole numbers"):
        CliRunner().invoke(app, ["reproduce", tiny, "--seeds", "a,b"], catch_exceptions=False)


def test_the_page_names_what_is_far_from_the_paper(tiny: str, tmp_path: Path) -> None:
    from motley.reproduce.pages import markdown

    made, results = spec.read(tiny), Results(tmp_path / "results")
    for seed, value in ((0, 0.55), (1, 0.56)):
        recipe = made.recipe_of(spec.Cell("A", "one"), spec.Draw(seed))
        results.add(finished(value, seed, identity=recipe.identity, recipe={"diagnostics": ["diversity"]}))
    page = markdown(build(made, results))
    assert "More than 3 points from the paper, 1 of 1: A, one (+5.5)." in page
    assert "6 runs are missing here." in page
