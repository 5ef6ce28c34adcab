"""A reproduction for people: a page of markdown, and beside it the table and the picture."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from motley.core.files import write_json, write_text
from motley.reproduce.claims import Verdict
from motley.reproduce.comparison import Row, Table
from motley.reproduce.results import RUNS, Finished
from motley.reproduce.table_picture import picture

GAP = 3.0  # points of difference from the paper that are named
HOLDS = {True: "yes", False: "no", None: "cannot tell"}


def markdown(table: Table) -> str:
    """The whole page."""
    made = table.reproduction
    lines = [f"# {made.title}", "", f"{made.paper}.", "", *_remarks(table)]
    for metric in dict.fromkeys(row.metric for row in table.rows):
        lines += _measured(table, metric)
    return "\n".join([*lines, *_beside_baseline(table), *_claims(table), *_made_with(table)])


def _remarks(table: Table) -> list[str]:
    """What to know before reading the numbers."""
    lines = []
    if table.quick:
        lines += [
            "**Small version**: less data, fewer rounds, fewer places. It shows that everything works; its numbers are "
            "not comparable with the paper's.",
            "",
        ]
    if table.reproduction.note:
        lines += [table.reproduction.note.strip(), ""]
    if table.missing:
        lines += [f"{table.missing} runs are missing here.", ""]
    return lines


def _measured(table: Table, metric: str) -> list[str]:
    """The paper's numbers beside ours in one metric."""
    draws = "runs" if table.reproduction.folds else "seeds"
    here = [row for row in table.rows if row.metric == metric]
    return [
        f"## {metric}",
        "",
        f"| | paper | here | 95 % interval | difference | {draws} |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(_line(row) for row in here),
        "",
        *_gaps(here),
    ]


def _claims(table: Table) -> list[str]:
    if not table.claims:
        return []
    heads = ["## Claims", "", _judged(table), "", "| claim | holds here | seeds | why |", "| --- | --- | ---: | --- |"]
    rows = [f"| {claim.text} | {_verdict(claim)} | {claim.seeds} | {claim.why} |" for claim in table.claims]
    return [*heads, *rows, ""]


def _judged(table: Table) -> str:
    found = table.counts
    return (
        f"{found['claims_hold']} hold here, {found['claims_fail']} do not, {found['claims_open']} cannot be told. Runs "
        "of one seed share their data and their fleet: claims are judged by differences seed by seed (t-test), with "
        "Holm's correction for the claims of this table."
    )


def _verdict(claim: Verdict) -> str:
    """The verdict, and how many seeds would be expected to give one."""
    return HOLDS[claim.holds] + (f" (about {claim.needed} seeds would)" if claim.needed else "")


def _beside_baseline(table: Table) -> list[str]:
    """Differences in percent of the baseline's means, with the p-values of the signed-rank test."""
    if not table.against:
        return []
    made = table.reproduction
    found = {(one.row, one.column): one for one in table.against}
    columns: list[str | None] = [*dict.fromkeys(one.column for one in table.against if one.column is not None), None]

    def told(row: str, column: str | None) -> str:
        one = found.get((row, column))
        return "" if one is None else f"{one.relative:+.2f} ({one.p:.2f})"

    rows = list(dict.fromkeys(one.row for one in table.against))
    heads = [column if column is not None else "mean" for column in columns]
    return [
        f"## Beside {made.baseline}, in percent",
        "",
        f"By {made.metrics[0]}: the difference of the means in percent of {made.baseline}'s, and in brackets the "
        "two-sided p-value of Wilcoxon's signed-rank test over the runs both have (five pairs cannot have one below "
        "0.06). The mean compares mean scores over the columns for which the paper has numbers, its p-value is of all "
        "their pairs.",
        "",
        f"| | {' | '.join(heads)} |",
        f"| --- |{' ---: |' * len(heads)}",
        *(f"| {row} | {' | '.join(told(row, column) for column in columns)} |" for row in rows),
        "",
    ]


def _line(row: Row) -> str:
    small = row.measured is not None and 0 < abs(row.measured) < 0.1
    digits = ".2g" if small else ".2f"
    between = "" if row.low is None or row.high is None else f"{row.low:{digits}} to {row.high:{digits}}"
    cells = (row.paper, row.measured)
    paper, here = ("" if value is None else f"{value:{digits}}" for value in cells)
    difference = "" if row.difference is None else f"{row.difference:+.2f}"
    return f"| {row.row} | {paper} | {here} | {between} | {difference} | {row.seeds} |"


def _gaps(rows: list[Row]) -> list[str]:
    """Which places are further from the paper than three points."""
    compared = [row for row in rows if row.difference is not None]
    far = [f"{row.row} ({row.difference:+.1f})" for row in compared if abs(row.difference or 0.0) > GAP]
    if not compared:
        return []
    told = "; ".join(far) if far else "none"
    return [f"More than {GAP:g} points from the paper, {len(far)} of {len(compared)}: {told}.", ""]


def _made_with(table: Table) -> list[str]:
    runs = [run for found in table.runs.values() for run in found]
    if not runs:
        return []
    devices = _named(run.device for run in runs)
    versions = _named(run.environment.get("packages", {}).get("torch") for run in runs)
    executors = _named(run.summary.get("executor") for run in runs)
    hours = sum(_seconds(run) for run in runs) / 3600
    flag = " --quick" if table.quick else ""
    over = "seeds and folds" if table.reproduction.folds else "seeds"
    return [
        "## How it was made",
        "",
        f"`motley reproduce {table.reproduction.name}{flag}`: {len(runs)} runs, {hours:.1f} hours of them in all, on "
        f"{devices}; executor {executors}; torch {versions}. Every run is in `{RUNS}` "
        "here, or in that of the reproduction that made it first. Intervals are 95 % t-intervals of the mean over "
        f"{over}, cut to where values can lie; claims are judged by the differences, one by one.",
        "",
    ]


def _seconds(run: Finished) -> float:
    return float(run.summary.get("wall_s") or 0.0)


def _named(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(value) for value in values}))


FORMER = (
    "**What follows was measured with former settings of this reproduction; with the present ones (`motley reproduce "
    "{name}`) nothing has been measured yet, and no claim counts as judged.**"
)


def write(table: Table, folder: Path) -> None:
    """Writes the table as markdown, JSON and, where something was measured, a picture.

    Without a single run nothing is written anew; a page of former settings that is there is marked as such.
    """
    page = folder / "README.md"
    if table.status == "none" and not page.is_file():
        return
    write_text(page, markdown(table) if table.status != "none" else marked(page.read_text(), table))
    write_json(folder / "table.json", table.as_json())
    if table.status != "none":
        picture(table, folder / "table.png")


def marked(page: str, table: Table) -> str:
    """A page of former settings with a sentence below its title that says so, once."""
    mark = FORMER.format(name=table.reproduction.name)
    title, rest = page.split("\n", 1)
    return page if mark in page else f"{title}\n\n{mark}\n{rest}"
