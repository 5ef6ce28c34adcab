"""Figures: accuracy against rounds, virtual time and bytes, several runs overlaid, a band over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from motley.core.wording import SHARES
from motley.report.pictures import drawing, save
from motley.report.run_data import Group, RunData

# Okabe and Ito's colours, told apart by everyone; each comes with a line style of its own.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")

Array = NDArray[np.float64]
Units = Sequence[tuple[float, float, str]]


def _rounds(run: RunData) -> Array:
    return np.array([record.round for record in run.measured], float)


def _seconds(run: RunData) -> Array:
    return np.array([record.virtual_time for record in run.measured], float)


def _traffic(run: RunData) -> Array:
    total = np.cumsum([record.bytes_up + record.bytes_down for record in run.records])
    seen = [i for i, record in enumerate(run.records) if run.headline in record.scores]
    return np.asarray(total[seen], float)


def scale(largest: float, units: Units) -> tuple[float, str]:
    """The size and name of the largest unit whose threshold the axis reaches."""
    fitting = [unit for unit in units if largest >= unit[0]]
    _, size, name = fitting[-1] if fitting else units[0]
    return size, name


# from this value on, one unit is this much, its name
SECONDS = ((0.0, 1e-3, "ms"), (1.0, 1.0, "s"), (180.0, 60.0, "min"), (7200.0, 3600.0, "h"), (259200.0, 86400.0, "days"))
BYTES = ((0.0, 1e3, "kB"), (1e6, 1e6, "MB"), (1e9, 1e9, "GB"), (1e12, 1e12, "TB"))

AXES: tuple[tuple[str, Callable[[RunData], Array], Units], ...] = (
    ("round", _rounds, ((0.0, 1.0, ""),)),
    ("virtual time", _seconds, SECONDS),
    ("traffic, up and down", _traffic, BYTES),
)


def score_label(headline: str) -> str:
    """What an axis says of a score."""
    words = headline.replace("_", " ")
    return f"test {words} (%)" if headline in SHARES else f"test {words}"


def score_factor(headline: str) -> float:
    return 100.0 if headline in SHARES else 1.0


def band(xs: Sequence[Array], ys: Sequence[Array], n: int = 400) -> tuple[Array, Array, Array, Array]:
    """Curves of several seeds on one grid over what all of them reached: x, mean, lowest, highest."""
    if len(xs) == 1:
        return xs[0], ys[0], ys[0], ys[0]
    low, high = max(x[0] for x in xs), min(x[-1] for x in xs)
    same = all(len(x) == len(xs[0]) and np.array_equal(x, xs[0]) for x in xs)
    grid = xs[0] if same else np.linspace(low, max(low, high), n)
    stacked = np.stack([np.interp(grid, x, y) for x, y in zip(xs, ys, strict=True)])
    return grid, stacked.mean(0), stacked.min(0), stacked.max(0)


def plot(groups: Sequence[Group], path: Path) -> Path:
    """Draws the three panels into one PNG."""
    with drawing() as plt:
        figure, panels = plt.subplots(1, 3, figsize=(14, 4.6), sharey=True, layout="constrained")
        for axes, (name, of, units) in zip(panels, AXES, strict=True):
            _panel(axes, groups, name, of, units)
        panels[0].set_ylabel(score_label(groups[0].headline))
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(3, len(labels)), frameon=False)
        if any(len(one.runs) > 1 for one in groups):
            figure.supxlabel("line: mean over seeds; band: lowest to highest seed", fontsize=9, color="0.4")
        return save(figure, path)


def _panel(
    axes: Any,
    groups: Sequence[Group],
    name: str,
    of: Callable[[RunData], Array],
    units: Units,
) -> None:
    largest = max(float(of(run)[-1]) for one in groups for run in one.runs)
    size, unit = scale(largest, units)
    for number, one in enumerate(groups):
        xs = [of(run) / size for run in one.runs]
        ys = [score_factor(one.headline) * np.array(run.history) for run in one.runs]
        x, mean, low, high = band(xs, ys)
        # Later lines are thinner, so that one that lies under another still shows.
        colour, style = COLOURS[number % len(COLOURS)], STYLES[(number // len(COLOURS)) % len(STYLES)]
        axes.plot(x, mean, style, color=colour, label=one.label, linewidth=max(1.2, 2.4 - 0.4 * number))
        if len(one.runs) > 1:
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.set_xlabel(f"{name} ({unit})" if unit else name)
    axes.grid(color="0.9", linewidth=0.7)
    axes.set_xlim(left=0)
