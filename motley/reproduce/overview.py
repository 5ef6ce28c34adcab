"""The index of ``results/``: what every folder in it holds, written from the files that are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from motley.core.files import write_text
from motley.reproduce.results import ROOM

ROOMS = {
    ROOM: "Papers' tables and figures measured again (`motley reproduce`): runs in `runs.jsonl`, a line each",
    "bench": "Motley measured on a machine (`motley bench`)",
    "tuning": "Searches for settings that papers do not name (`motley tune`): a line of `runs.jsonl` per search",
    "examples": "Recipes that come with Motley",
}


def overview(folder: Path) -> str:
    """The page, by rooms."""
    lines = [
        "# Results",
        "",
        "Every number was measured; each folder says by which command, with which seeds and where.",
        "",
    ]
    for room, told in ROOMS.items():
        found = sorted(path.parent for path in (folder / room).glob("*/README.md"))
        if found:
            lines += [f"## {room}", "", f"{told}.", "", *_table(found, room), ""]
    lines += ["`motley reproduce --pages` writes this page again, and those of all papers."]
    return "\n".join(lines) + "\n"


def _table(folders: list[Path], room: str) -> list[str]:
    papers = room == ROOM
    head = ["| | what | runs missing | claims that hold |", "| --- | --- | ---: | ---: |"]
    rows = head if papers else ["| | what |", "| --- | --- |"]
    return rows + [_line(folder, room, papers) for folder in folders]


def _line(folder: Path, room: str, paper: bool) -> str:
    title = folder.joinpath("README.md").read_text().splitlines()[0].removeprefix("# ")
    start = f"| [{folder.name}]({room}/{folder.name}/README.md) | {title} |"
    return f"{start} {_counts(folder / 'table.json')} |" if paper else start


def _counts(path: Path) -> str:
    """How many runs are missing, and how many of the claims hold."""
    if not path.is_file():
        return " | "
    table: dict[str, Any] = json.loads(path.read_text())
    holds = [claim["holds"] for claim in table["claims"]]
    return f"{table['missing_runs']} | {holds.count(True)} of {len(holds)}" if holds else f"{table['missing_runs']} | "


def write_overview(folder: Path) -> None:
    """Writes the page into the folder."""
    write_text(folder / "README.md", overview(folder))
