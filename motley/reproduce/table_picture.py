"""A reproduction's picture: curves, and below them the paper's numbers beside ours."""

from __future__ import annotations

import math
import statistics
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from motley.report.pictures import save
from motley.reproduce.comparison import Row, Table
from motley.reproduce.metrics import by_speed
from motley.reproduce.reproduction import Cell
from motley.reproduce.results import Finished

ACCURACY = "test accuracy (%)"
BY_SPEED = "participation by speed"  # a curve over deciles of speed, 1 where all take part alike
ABREAST = 6  # columns side by side


@dataclass(frozen=True)
class Drawing:
    """What is drawn of a table: curves of every column above each other, and a panel of dots below them."""

    table: Table
    columns: list[str]
    colours: dict[str, Any]  # of the rows
    curves: list[str]

    @classmethod
    def of(cls, table: Table) -> Drawing:
        import matplotlib.pyplot as plt

        rows = list(dict.fromkeys(cell.row for cell in table.runs))
        palette = plt.get_cmap("tab10" if len(rows) <= 10 else "tab20")
        runs = [run for found in table.runs.values() for run in found]
        curves = [name for name in table.reproduction.curves or [ACCURACY] if _is_curve(runs, name)]
        columns = list(dict.fromkeys(cell.column for cell in table.runs))
        return cls(table, columns, {row: palette(i) for i, row in enumerate(rows)}, curves)

    @property
    def heights(self) -> list[float]:
        """Of the panels of a column, in inches."""
        return [3.2] * len(self.curves) + [1.2 + 0.28 * len(self.colours)]

    @property
    def bands(self) -> list[list[str]]:
        """Columns that stand side by side."""
        return [self.columns[i : i + ABREAST] for i in range(0, len(self.columns), ABREAST)]

    @property
    def title(self) -> str:
        return f"{'Small version of: ' if self.table.quick else ''}{self.table.reproduction.title}"

    def column(self, panels: Any, column: str) -> None:
        """One column: its curves, then its dots."""
        found = {row: self.table.runs.get(Cell(row, column), []) for row in self.colours}
        for axis, name in zip(panels, self.curves, strict=False):
            for row, colour in self.colours.items():
                _curve(axis, found[row], _width(found), name, colour, row)
            along = "decile of speed, slowest first" if name == BY_SPEED else "round"
            axis.set(title=column or self.table.reproduction.name, xlabel=along, ylabel=name)
            axis.set_visible(axis.has_data())
        _dots(panels[-1], self.table, column, self.colours)


def picture(table: Table, path: Path) -> None:
    """Curves of the test accuracy or of what the file names (means), below them the paper's numbers beside ours."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    drawing = Drawing.of(table)
    bands, heights = drawing.bands, drawing.heights
    abreast, deep = len(bands[0]), len(heights)
    size = (4.2 * abreast + 1.5, sum(heights) * len(bands))
    figure, axes = plt.subplots(
        deep * len(bands), abreast, figsize=size, squeeze=False, height_ratios=heights * len(bands),
        layout="constrained",
    )  # fmt: skip
    for i, band in enumerate(bands):
        ours = axes[i * deep : (i + 1) * deep]
        for j, column in enumerate(band):
            drawing.column(ours[:, j], column)
        for axis in ours[:, len(band) :].flat:
            axis.set_visible(False)
    lines = [Line2D([], [], color=colour, label=row) for row, colour in drawing.colours.items()]
    figure.legend(handles=lines, fontsize=7, loc="outside right center")
    figure.suptitle(textwrap.fill(drawing.title, int(11 * size[0])), fontsize=10)
    save(figure, path, 110)


def _is_curve(runs: list[Finished], name: str) -> bool:
    return any(len(points(run, name)[1]) > 1 for run in runs)


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


def _dots(axis: Any, table: Table, column: str, colours: dict[str, Any]) -> None:
    metric = table.reproduction.metrics[0]
    found = {row.row: row for row in table.rows if row.metric == metric}
    for place, (name, colour) in enumerate(colours.items()):
        row = found.get(str(Cell(name, column)))
        if row is not None:
            _dot(axis, row, place, colour)
    named = any(row.paper is not None for row in found.values())
    axis.set(yticks=range(len(colours)), xlabel=f"{metric} (line: paper)" if named else metric)
    axis.set_yticklabels(colours, fontsize=7)
    axis.invert_yaxis()
    axis.grid(alpha=0.3)


def _dot(axis: Any, row: Row, place: int, colour: Any) -> None:
    """The paper's number as a line, ours as a dot with its interval."""
    if row.paper is not None:
        axis.plot(row.paper, place, marker="|", color="black", markersize=10, linestyle="none")
    if row.measured is None:
        return
    if row.low is not None and row.high is not None:
        axis.plot([row.low, row.high], [place, place], color=colour, linewidth=1.5)
    axis.plot(row.measured, place, marker="o", color=colour, linestyle="none")
