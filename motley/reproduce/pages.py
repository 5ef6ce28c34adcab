"""A reproduction for people: markdown and a picture."""

from __future__ import annotations

import math
import statistics
import textwrap
from pathlib import Path
from typing import Any

from motley.core.files import write_json, write_text
from motley.reproduce.comparison import Row, Table
from motley.reproduce.metrics import by_speed
from motley.reproduce.reproduction import Cell
from motley.reproduce.results import Finished

GAP = 3.0  # points of difference from the paper that are named
HOLDS = {True: "yes", False: "no", None: "cannot tell"}


def markdown(table: Table) -> str:
    """The whole page."""
    made = table.reproduction
    lines = [f"# {made.title}", "", f"{made.paper}.", ""]
    if table.quick:
        lines += [
            "**Small version**: less data, fewer rounds, fewer places. It shows that everything works; its numbers are "
            "not comparable with the paper's.",
            "",
        ]
    if made.note:
        lines += [made.note.strip(), ""]
    if table.missing:
        lines += [f"{table.missing} runs are missing here.", ""]
    draws = "runs" if made.folds else "seeds"
    for metric in dict.fromkeys(row.metric for row in table.rows):
        lines += [f"## {metric}", "", f"| | paper | here | 95 % interval | difference | {draws} |"]
        lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
        here = [row for row in table.rows if row.metric == metric]
        lines += [*(_line(row) for row in here), "", *_gaps(here)]
    lines += _beside_baseline(table)
    if table.claims:
        lines += ["## Claims", "", "| claim | holds here | why |", "| --- | --- | --- |"]
        lines += [f"| {claim.text} | {HOLDS[claim.holds]} | {claim.why} |" for claim in table.claims] + [""]
    return "\n".join([*lines, *_made_with(table)])


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
        "0.06). The mean is taken over the columns for which the paper has numbers, its p-value over all their pairs.",
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
    devices = sorted({run.device for run in runs})
    versions = sorted({str(run.environment.get("packages", {}).get("torch")) for run in runs})
    hours = sum(float(run.summary.get("wall_s") or 0.0) for run in runs) / 3600
    executors = sorted({str(run.summary.get("executor")) for run in runs})
    flag = " --quick" if table.quick else ""
    over = "seeds and folds" if table.reproduction.folds else "seeds"
    return [
        "## How it was made",
        "",
        f"`motley reproduce {table.reproduction.name}{flag}`: {len(runs)} runs, {hours:.1f} hours of them in all, on "
        f"{', '.join(devices)}; executor {', '.join(executors)}; torch {', '.join(versions)}. Every run is in `runs/` "
        "here, or in that of the reproduction that made it first. Intervals are 95 % t-intervals of the mean over "
        f"{over}, cut to where values can lie; claims are judged by the interval of the differences, one by one.",
        "",
    ]


def write(table: Table, folder: Path) -> list[Path]:
    """Writes the table as markdown, JSON and, where something was measured, a picture."""
    write_text(folder / "table.md", markdown(table))
    write_json(folder / "table.json", table.as_json())
    made = [folder / "table.md", folder / "table.json"]
    if any(table.runs.values()):
        picture(table, folder / "table.png")
        made.append(folder / "table.png")
    return made


def picture(table: Table, path: Path) -> None:
    """Curves of the test accuracy or of what the file names (means), below them the paper's numbers beside ours."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    columns = list(dict.fromkeys(cell.column for cell in table.runs))
    rows = list(dict.fromkeys(cell.row for cell in table.runs))
    runs = [run for found in table.runs.values() for run in found]
    curves = [c for c in table.reproduction.curves or [ACCURACY] if any(len(points(run, c)[1]) > 1 for run in runs)]
    colours = {row: plt.get_cmap("tab10" if len(rows) <= 10 else "tab20")(i) for i, row in enumerate(rows)}
    heights = [3.2] * len(curves) + [1.2 + 0.28 * len(rows)]
    bands = [columns[i : i + ABREAST] for i in range(0, len(columns), ABREAST)]
    size = (4.2 * len(bands[0]) + 1.5, sum(heights) * len(bands))
    figure, axes = plt.subplots(
        len(heights) * len(bands), len(bands[0]), figsize=size, squeeze=False, height_ratios=heights * len(bands),
        layout="constrained",
    )  # fmt: skip
    for i, band in enumerate(bands):
        ours = axes[i * len(heights) : (i + 1) * len(heights)]
        for j, column in enumerate(band):
            found = {row: table.runs.get(Cell(row, column), []) for row in rows}
            for axis, name in zip(ours[:, j], curves, strict=False):
                for row in rows:
                    _curve(axis, found[row], _width(found), name, colours[row], row)
                along = "decile of speed, slowest first" if name == BY_SPEED else "round"
                axis.set(title=column or table.reproduction.name, xlabel=along, ylabel=name)
                axis.set_visible(axis.has_data())
            _dots(ours[-1][j], table, column, rows, colours)
        for axis in ours[:, len(band) :].flat:
            axis.set_visible(False)
    lines = [Line2D([], [], color=colours[row], label=row) for row in rows]
    figure.legend(handles=lines, fontsize=7, loc="outside right center")
    kind = "Small version of: " if table.quick else ""
    title = textwrap.fill(f"{kind}{table.reproduction.title}", int(11 * size[0]))
    figure.suptitle(title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


ACCURACY = "test accuracy (%)"
BY_SPEED = "participation by speed"  # a curve over deciles of speed, 1 where all take part alike
ABREAST = 6  # columns side by side


def _width(found: dict[str, list[Finished]]) -> int:
    """Rounds of a column: the fewest, since asynchronous methods count mergings, of which there are more."""
    return min((run.recipe.get("rounds") or run.rounds[-1] for runs in found.values() for run in runs), default=1)


def points(run: Finished, name: str) -> tuple[list[int], list[float]]:
    """Rounds and values of a curve: the test accuracy, or a recorded number of all rounds or the evaluated ones."""
    if name == ACCURACY:
        return run.rounds, [100 * value for value in run.accuracy]
    if name == BY_SPEED:
        shares = by_speed(run)
        return list(range(1, len(shares) + 1)), shares
    values = [math.nan if value is None else value for value in run.extra.get(name, [])]
    return (run.rounds if len(values) == len(run.rounds) else list(range(1, len(values) + 1))), values


def _curve(axis: Any, runs: list[Finished], width: int, name: str, colour: Any, label: str) -> None:
    """The mean of all runs, as far as all of them go."""
    drawn = [points(run, name) for run in runs]
    shortest = min((len(values) for _, values in drawn), default=0)
    if not shortest:
        return
    mean = [statistics.fmean(values[i] for _, values in drawn) for i in range(shortest)]
    scale = 1.0 if name == BY_SPEED else width / (runs[0].recipe.get("rounds") or runs[0].rounds[-1])
    axis.plot([scale * number for number in drawn[0][0][:shortest]], mean, color=colour, linewidth=0.9, label=label)
    axis.grid(alpha=0.3)


def _dots(axis: Any, table: Table, column: str, rows: list[str], colours: dict[str, Any]) -> None:
    metric = table.reproduction.metrics[0]
    found = {row.row: row for row in table.rows if row.metric == metric}
    for place, name in enumerate(rows):
        row = found.get(str(Cell(name, column)))
        if row is None:
            continue
        if row.paper is not None:
            axis.plot(row.paper, place, marker="|", color="black", markersize=10, linestyle="none")
        if row.measured is not None:
            if row.low is not None and row.high is not None:
                axis.plot([row.low, row.high], [place, place], color=colours[name], linewidth=1.5)
            axis.plot(row.measured, place, marker="o", color=colours[name], linestyle="none")
    named = any(row.paper is not None for row in found.values())
    axis.set(yticks=range(len(rows)), xlabel=f"{metric} (line: paper)" if named else metric)
    axis.set_yticklabels(rows, fontsize=7)
    axis.invert_yaxis()
    axis.grid(alpha=0.3)
