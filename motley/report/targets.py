"""What a score costs: rounds, virtual seconds and bytes until it is reached, and which runs are the cheapest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from motley.core.wording import duration, megabytes, score_text
from motley.report.plots import BYTES, COLOURS, SECONDS, Units, scale, score_factor, score_label
from motley.report.run_data import Group, RunData, mean_and_interval
from motley.runtime.records import Record


def reached(run: RunData, target: float) -> Record | None:
    """The first evaluated round whose headline is at least (where less is better: at most) the target."""
    name, better = run.headline, run.better
    return next((one for one in run.measured if better * (one.scores[name] - target) >= 0), None)


def target_rows(groups: Sequence[Group], target: float) -> list[dict[str, Any]]:
    """One row per group: means over the seeds that reached the target, and how many did."""
    rows = []
    for one in groups:
        found = [(run, record) for run in one.runs if (record := reached(run, target)) is not None]
        columns: dict[str, list[float]] = {
            "rounds": [record.round for _, record in found],
            "virtual_time": [record.virtual_time for _, record in found],
            "bytes": [run.traffic(record.round) for run, record in found],
        }
        means = {key: mean_and_interval(values)[0] if values else None for key, values in columns.items()}
        rows.append({"label": one.label, "reached": len(found), "seeds": len(one.runs), **means})
    return rows


def target_table(groups: Sequence[Group], target: float) -> str:
    """The same as a table in markdown."""
    head = groups[0].headline
    lines = [f"| to {head} {score_text(head, target)} | rounds | virtual time | up and down | seeds |"]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for row in target_rows(groups, target):
        cells = ["not reached", "", ""]
        if row["reached"]:
            cells = [f"{row['rounds']:g}", duration(row["virtual_time"]), megabytes(row["bytes"])]
        lines.append(f"| {row['label']} | {' | '.join(cells)} | {row['reached']} of {row['seeds']} |")
    return "\n".join(lines) + "\n"


def frontier_rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """One row per group: what it reached and what it cost, and whether no other is at once as good and as cheap."""
    rows = []
    for one in groups:
        last = [run.records[-1] for run in one.runs]
        rows.append(
            {
                "label": one.label,
                "score": mean_and_interval([run.history[-1] for run in one.runs])[0],
                "virtual_time": mean_and_interval([record.virtual_time for record in last])[0],
                "bytes": mean_and_interval([run.traffic(run.records[-1].round) for run in one.runs])[0],
            }
        )
    better = groups[0].runs[0].better
    for axis in ("virtual_time", "bytes"):
        for row in rows:
            row[f"best_for_{axis}"] = not any(_beats(other, row, axis, better) for other in rows)
    return rows


def _beats(one: dict[str, Any], other: dict[str, Any], axis: str, better: int) -> bool:
    """Whether one is at least as good and as cheap as the other, and one of both more so."""
    gain, saved = better * (one["score"] - other["score"]), other[axis] - one[axis]
    return gain >= 0 and saved >= 0 and (gain > 0 or saved > 0)


AXES: tuple[tuple[str, str, Units], ...] = (
    ("virtual_time", "virtual time", SECONDS),
    ("bytes", "traffic, up and down", BYTES),
)


LONG = 34  # letters of a label that leave no room for others beside it


def plot_frontier(groups: Sequence[Group], path: Path) -> Path:
    """The score at the end against time and against traffic; a line joins the runs that no other beats in both."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows, headline = frontier_rows(groups), groups[0].headline
    with mpl.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        columns = 1 if max(len(row["label"]) for row in rows) > LONG else min(3, len(rows))
        height = 4.6 + 0.25 * math.ceil(len(rows) / columns)
        figure, panels = plt.subplots(1, 2, figsize=(10.5, height), sharey=True, layout="constrained")
        for axes, (key, name, units) in zip(panels, AXES, strict=True):
            _frontier(axes, rows, key, name, units, score_factor(headline))
        panels[0].set_ylabel(score_label(headline))
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)
        figure.supxlabel("line: no other run is as good and as cheap", fontsize=9, color="0.4")
        figure.savefig(path, dpi=130)
        plt.close(figure)
    return path


def _frontier(axes: Any, rows: Sequence[dict[str, Any]], key: str, name: str, units: Units, factor: float) -> None:
    size, unit = scale(max(row[key] for row in rows), units)
    best = sorted((row for row in rows if row[f"best_for_{key}"]), key=lambda row: row[key])
    axes.plot([row[key] / size for row in best], [factor * row["score"] for row in best], "-", color="0.6", zorder=1)
    for number, row in enumerate(rows):
        marker = "os^Dv"[(number // len(COLOURS)) % 5]
        colour = COLOURS[number % len(COLOURS)]
        axes.scatter(row[key] / size, factor * row["score"], 60, color=colour, marker=marker, label=row["label"])
    axes.set_xlabel(f"{name} ({unit})")
    axes.set_xlim(left=0)
    axes.grid(color="0.9", linewidth=0.7)
    axes.set_axisbelow(True)
