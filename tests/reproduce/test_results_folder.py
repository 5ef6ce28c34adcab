"""The folder ``results/`` of this repository: its layout, its index, what its pages say, and how large it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from motley.report.pictures import MOST
from motley.reproduce import reproduction as spec
from motley.reproduce.comparison import build
from motley.reproduce.overview import ROOMS, overview
from motley.reproduce.pages import markdown, marked
from motley.reproduce.results import Results, read_runs

FOLDER = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(FOLDER)


def test_every_folder_has_a_room_and_a_page() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*ROOMS, "README.md"}
    for room in ROOMS:
        for folder in (FOLDER / room).iterdir():
            assert (folder / "README.md").is_file(), f"{folder} has no README.md"


def test_the_index_is_up_to_date() -> None:
    assert (FOLDER / "README.md").read_text() == overview(FOLDER), "motley reproduce --pages writes it again"


@pytest.mark.parametrize("name", spec.names())
def test_pages_say_what_the_runs_say(name: str, results: Results) -> None:
    table, place = build(spec.read(name), results), results.place(name, False)
    page = place / "README.md"
    if table.status == "none" and not page.is_file():
        return
    told = markdown(table) if table.status != "none" else marked(page.read_text(), table)
    assert page.read_text() == told, f"motley reproduce {name} --pages writes it again"
    assert json.loads((place / "table.json").read_text()) == json.loads(json.dumps(table.as_json()))


def test_runs_are_kept_once_and_where_they_belong() -> None:
    for path in FOLDER.glob("papers/*/runs.jsonl"):
        runs = list(read_runs(path))
        assert {(run.reproduction, run.quick) for run in runs} == {(path.parent.name, False)}
        assert len({run.identity for run in runs}) == len(runs)


def test_pictures_are_small() -> None:
    large = {str(path) for path in FOLDER.rglob("*.png") if path.stat().st_size > MOST}
    assert not large
