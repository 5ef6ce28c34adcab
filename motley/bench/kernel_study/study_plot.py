"""The study as a picture: how many times as fast as NumPy, a row per kernel, a mark per way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from motley.bench.kernel_study.study_pages import GROUPS
from motley.bench.kernel_study.study_table import Place, StudyTable
from motley.bench.kernel_study.study_ways import BASE

MARKS = "osD^vP*X"


def plot(table: StudyTable, path: Path, where: str) -> Path:
    """One panel per group, at the largest size with all cores; hollow marks: the smaller size."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    from motley.report.plots import COLOURS

    groups = [group for group in GROUPS if table.kernels(group)]
    looks = _looks(list(dict.fromkeys(way for group in groups for way in table.ways(group))), COLOURS)
    heights = [len(table.kernels(group)) for group in groups]
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure, panels = plt.subplots(
            len(groups), 1, figsize=(9, 1.6 + 0.34 * sum(heights)), height_ratios=heights, layout="constrained",
            squeeze=False,
        )  # fmt: skip
        for axes, group in zip(panels[:, 0], groups, strict=True):
            _panel(axes, table, group, looks)
        panels[-1, 0].set_xlabel(f"times as fast as NumPy ({where}, {table.cores} threads; hollow: the small size)")
        handles = [
            Line2D([], [], color=look[0], marker=look[1], linestyle="", label=way) for way, look in looks.items()
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=min(5, max(1, len(handles))), frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
        plt.close(figure)
    return path


def _looks(ways: Sequence[str], colours: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a mark for each way but NumPy, which is the line at 1."""
    others = [way for way in ways if way != BASE]
    return {way: (colours[i % len(colours)], MARKS[i % len(MARKS)]) for i, way in enumerate(others)}


def _panel(axes: Any, table: StudyTable, group: str, looks: dict[str, tuple[str, str]]) -> None:
    kernels, sizes = table.kernels(group), table.sizes(group)
    for way, (colour, mark) in looks.items():
        for size in sizes[-2:]:
            found = [(table.speed(Place(kernel, size, way, table.cores)), i) for i, kernel in enumerate(kernels)]
            spots = [(ratio.middle, i) for ratio, i in found if ratio is not None]
            if spots:
                fill = colour if size == sizes[-1] else "none"
                axes.scatter(*zip(*spots, strict=True), marker=mark, facecolors=fill, edgecolors=colour, s=34, zorder=3)
    axes.axvline(1.0, color="0.6", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(kernels)), kernels)
    axes.invert_yaxis()
    axes.grid(axis="both", color="0.92")
    axes.set_title(GROUPS[group], loc="left", fontsize=10)
