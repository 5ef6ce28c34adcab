"""Who trained when: a bar for every task from its dispatch to its end, with what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from motley.core.errors import StateError
from motley.report.plots import SECONDS, scale
from motley.runtime.task_log import NAME, read_events

MOST = 60  # clients in a picture
FATES = {
    "merged": ("#0072B2", "merged"),
    "arrived": ("#56B4E9", "arrived, not merged by itself"),
    "late": ("#E69F00", "late: given up or thrown away"),
    "lost": ("#D55E00", "lost"),
    "refused": ("#CC79A7", "refused: not finite"),
    "out": ("0.75", "still under way"),
}
ENDS = {"arrive": "arrived", "lose": "lost", "give up": "late", "discard": "late", "refuse": "refused"}


@dataclass
class Trip:
    """One task on the clock."""

    client: int
    begin: float
    end: float | None = None
    fate: str = "out"


def trips(events: Iterable[dict[str, Any]]) -> tuple[list[Trip], list[float]]:
    """Every task with its end, and the moments at which the server merged."""
    found: dict[str, Trip] = {}
    merged: list[float] = []
    for event in events:
        if event["what"] == "aggregate":
            merged.append(event["time"])
            for task in event["tasks"]:
                if task in found:
                    found[task].fate = "merged"
        elif event["what"] == "dispatch":
            found[event["task"]] = Trip(event["client"], event["time"])
        elif event["what"] in ENDS and event["task"] in found:
            trip = found[event["task"]]
            trip.fate = ENDS[event["what"]]
            trip.end = event["time"] if trip.end is None else trip.end
    return list(found.values()), merged


def shown_clients(every: Sequence[Trip], most: int = MOST) -> list[int]:
    """The clients of a picture: all that had tasks, or those with the most."""
    counts = Counter(trip.client for trip in every)
    return sorted(client for client, _ in sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:most])


def plot_timeline(folder: Path, path: Path) -> Path:
    """Draws the tasks of a run into a PNG."""
    if not (folder / NAME).is_file():
        raise StateError(f"The run {folder} has no {NAME}; run it with events=true to see who trained when.")
    every, merged = trips(read_events(folder))
    if not every:
        raise StateError(f"The events of {folder} hold no task yet; wait, or continue it with 'motley resume'.")
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    clients = shown_clients(every)
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(figsize=(12, 1.8 + 0.2 * max(6, len(clients))), layout="constrained")
        _draw(axes, every, merged, clients)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
        plt.close(figure)
    return path


def _bars(axes: Any, bars: Sequence[Trip], fate: str, row: dict[int, int], now: float, size: float) -> None:
    """The tasks that ended in one way; those under way reach to the end of the picture."""
    if bars:
        colour, label = FATES[fate]
        widths = [((now if trip.end is None else trip.end) - trip.begin) / size for trip in bars]
        begins, rows = [trip.begin / size for trip in bars], [row[trip.client] for trip in bars]
        axes.barh(rows, widths, 0.7, begins, color=colour, edgecolor="white", linewidth=0.6, label=label)


def _latest(every: Sequence[Trip], merged: Sequence[float]) -> float:
    return max([*merged, *(trip.end or trip.begin for trip in every)])


def _draw(axes: Any, every: Sequence[Trip], merged: Sequence[float], clients: Sequence[int]) -> None:
    now = _latest(every, merged)
    size, unit = scale(now, SECONDS)
    row = {client: number for number, client in enumerate(clients)}
    for fate in FATES:
        _bars(axes, [trip for trip in every if trip.fate == fate and trip.client in row], fate, row, now, size)
    axes.vlines([moment / size for moment in merged], -0.5, len(clients) - 0.5, colors="0.4", linewidth=0.5, zorder=0)
    some = len({trip.client for trip in every})
    told = f"client (the {len(clients)} of {some} with the most tasks)" if some > len(clients) else "client"
    axes.set(xlabel=f"virtual time ({unit}); thin lines: the server merges", ylabel=told)
    axes.set_yticks(range(len(clients)), clients, fontsize=8)
    axes.set_ylim(len(clients) - 0.4, -0.6)
    axes.set_xlim(0, now / size * 1.01 if now else 1)
