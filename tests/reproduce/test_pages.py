"""Pages and pictures of a reproduction."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from motley.reproduce import reproduction as spec
from motley.reproduce.comparison import build
from motley.reproduce.pages import markdown, write
from motley.reproduce.results import Results
from motley.reproduce.table_picture import ACCURACY, BY_SPEED, picture, points
from tests.reproduce.finished_runs import finished


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


def test_the_page_names_what_is_far_from_the_paper(tiny: str, tmp_path: Path) -> None:

    made, results = spec.read(tiny), Results(tmp_path / "results")
    for seed, value in ((0, 0.55), (1, 0.56)):
        recipe = made.recipe_of(spec.Cell("A", "one"), spec.Draw(seed))
        results.add(finished(value, seed, identity=recipe.identity, recipe={"diagnostics": ["diversity"]}))
    page = markdown(build(made, results))
    assert "More than 3 points from the paper, 1 of 1: A, one (+5.5)." in page
    assert "6 runs are missing here." in page


def test_a_page_of_former_settings_says_so(tiny: str, tmp_path: Path) -> None:
    made, results = spec.read(tiny), Results(tmp_path / "results")
    place = results.place(made.name, False)
    write(build(made, results), place)
    assert not place.exists()  # nothing was ever measured
    recipe = made.recipe_of(made.cells()[0], made.draws()[0])
    results.add(finished(0.5, identity=recipe.identity, recipe={"diagnostics": ["diversity"]}))
    write(build(made, results), place)
    measured = (place / "README.md").read_text()
    changed = made.model_copy(update={"recipe": {**made.recipe, "lr": 0.123}})
    for _ in range(2):
        write(build(changed, results), place)
    page = (place / "README.md").read_text()
    assert page.count("former settings") == 1
    assert page.startswith(f"# {made.title}\n\n**What follows was measured with former settings")
    assert page.endswith(measured.split("\n", 1)[1])
    assert json.loads((place / "table.json").read_text())["status"] == "none"
    write(build(made, results), place)
    assert (place / "README.md").read_text() == measured
