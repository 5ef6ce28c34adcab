"""A description as a picture, and as one self-contained page with that picture in it."""

from __future__ import annotations

import base64
import html
import textwrap
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from motley.data.federated import FederatedData
from motley.report.advice import percent, seconds
from motley.report.description import Description, Histogram, sample_mixes

_INK, _MUTED, _GRID = "#1f2933", "#616e7c", "#e4e7eb"
_BLUE, _TEAL, _AMBER, _ROSE = "#2f6db5", "#2a9d8f", "#e9a03b", "#c8553d"
_CAUSES = {"workload": "too much work", "limited": "limited device", "deadline": "too slow", "late": "rounds late"}
_CLIENTS = 200  # rows of the heat map


def render_png(description: Description, data: FederatedData, path: str | Path | BytesIO) -> None:
    """Client sizes, label mix, speeds, round times, deadlines and rates in one picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    d = description
    fleet = textwrap.wrap(f"fleet: {' + '.join(d.fleet[1:]) or 'ideal'}", 150, max_lines=3, placeholder=" …")
    top = 0.94 - 0.022 * len(fleet)
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.12, hspace=0.06, wspace=0.03, rect=(0, 0, 1, top))
    figure = Figure(figsize=(12, 7.2), dpi=100, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, 3, width_ratios=(1.1, 1.1, 0.9))
    _sizes(grid[0, 0], d)
    _label_mix(figure, grid[0, 1], d, data)
    _rates(grid[0, 2], d)
    _speeds(grid[1, 0], d)
    _round_times(grid[1, 1], d)
    _deadlines(grid[1, 2], d)
    figure.text(0.012, 0.97, f"{d.dataset}: {d.clients:,} clients", size=15, weight="bold", color=_INK, va="center")
    figure.text(0.012, 0.95, "\n".join(fleet), size=9.5, color=_MUTED, va="top")
    figure.savefig(
        path, format="png", facecolor="white", metadata={"Software": "motley"}, pil_kwargs={"optimize": True}
    )


def _plain(axes: Any, title: str, note: str = "") -> None:
    axes.set_title(title, loc="left", size=11, color=_INK, weight="bold", pad=20 if note else 8)
    if note:
        axes.text(0, 1.03, note, transform=axes.transAxes, size=8.5, color=_MUTED)
    axes.tick_params(colors=_MUTED, labelsize=8.5, length=0)
    axes.xaxis.label.set(color=_MUTED, size=9)
    axes.yaxis.label.set(color=_MUTED, size=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def _histogram(axes: Any, histogram: Histogram, color: str, label: str, everybody: str) -> None:
    axes.set_xlabel(label)
    axes.yaxis.get_major_locator().set_params(integer=True, nbins=6)
    if len(histogram.counts) == 1:
        axes.bar([0], histogram.counts, width=0.2, color=color)
        axes.set_xlim(-1, 1)
        axes.set_xticks([0], [everybody])
        return
    edges = np.array(histogram.edges)
    axes.bar(edges[:-1], histogram.counts, width=np.diff(edges), align="edge", color=color, edgecolor="white", lw=0.6)
    if histogram.log:
        axes.set_xscale("log")
        axes.minorticks_off()
        ticks = _round_numbers(edges[0], edges[-1])
        axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])


def _round_numbers(low: float, high: float) -> list[float]:
    """Ticks at 1, 2, 5, 10, ... or at powers of ten where those would be too many."""
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for steps in ((1, 2, 5), (1,)):
        ticks = [float(f"{step}e{power}") for power in powers for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= 7:
            break
    return ticks


def _sizes(axes: Any, d: Description) -> None:
    _histogram(axes, d.size_histogram, _BLUE, "samples of a client", f"all {d.size_min:,}")
    axes.set_ylabel("clients")
    _plain(axes, "Client sizes", f"mean {d.size_mean:,.1f}, standard deviation {d.size_std:,.1f}, Gini {d.gini:.2f}")


def _label_mix(figure: Any, axes: Any, d: Description, data: FederatedData) -> None:
    mixes = sample_mixes(data.labels, _CLIENTS)
    image = axes.imshow(mixes, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axes.set_xlabel("class")
    axes.set_ylabel(
        f"{'clients' if len(mixes) == d.clients else f'{len(mixes)} of {d.clients:,} clients'}, by main class"
    )
    _plain(axes, "Label mix", f"C-score {d.c_score:.2f}, EMD {d.emd:.2f}, JS {d.js:.2f}, KL {d.kl:.2f}")
    axes.grid(False)
    axes.set_yticks([])
    if d.classes <= 20:
        axes.set_xticks(range(d.classes))
    bar = figure.colorbar(image, ax=axes, fraction=0.05, aspect=32, pad=0.02, ticks=[0, 0.5, 1])
    bar.outline.set_visible(False)
    bar.ax.set_yticklabels(["0 %", "50 %", "100 %"])
    bar.ax.tick_params(colors=_MUTED, labelsize=8, length=0)


def _rates(axes: Any, d: Description) -> None:
    rows = [
        ("cohorts that miss a class", d.cohorts_missing_a_class, _BLUE),
        ("classes a cohort misses", d.classes_missed_by_cohort, _BLUE),
        ("stragglers", d.straggler_rate, _ROSE),
        *((words, d.straggler_causes[name], _AMBER) for name, words in _CAUSES.items()),
        ("dropouts", d.dropout_rate, _ROSE),
        ("away", d.absence_rate, _AMBER),
        ("update lost", d.loss_rate, _AMBER),
        ("participation entropy", d.participation_entropy, _TEAL),
    ]
    places = np.arange(len(rows))[::-1]
    shares = [share for _, share, _ in rows]
    axes.barh(places, np.ones(len(rows)), color="#f5f7fa", height=0.62)
    axes.barh(places, shares, color=[color for *_, color in rows], height=0.62)
    for place, (name, share, _) in zip(places, rows, strict=True):
        words = f"{share:.2f}" if name.startswith("participation") else percent(share)
        axes.text(1.02, place, words, va="center", size=8.5, color=_INK)
    _plain(axes, "Expected rates", f"cohorts of {d.cohort:,}, {d.epochs:g} epochs, {d.rounds} rounds rehearsed")
    axes.grid(False)
    axes.set_yticks(places, [name for name, *_ in rows])
    for label, (*_, color) in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_color(_MUTED if color == _AMBER else _INK)
    axes.set_xticks([])
    axes.set_xlim(0, 1.28)
    axes.spines["bottom"].set_visible(False)


def _speeds(axes: Any, d: Description) -> None:
    _histogram(axes, d.speed_histogram, _TEAL, "training samples per second", f"all {d.speed_quantiles['50%']:,.0f}")
    axes.set_ylabel("clients")
    _plain(axes, "Speeds", f"fast (95 %) over slow (5 %): {d.speed_ratio:.1f} x")


def _round_times(axes: Any, d: Description) -> None:
    _histogram(axes, d.round_time_histogram, _AMBER, "seconds", f"always {seconds(d.round_time)}")
    axes.set_ylabel("rounds")
    until = "waiting for the slowest" if d.deadline is None else f"deadline {seconds(d.deadline)}"
    _plain(axes, "Round times", f"mean {seconds(d.round_time)}, {until}")
    if len(d.round_time_histogram.counts) > 1:
        axes.axvline(d.round_time, color=_INK, lw=1.2, ls=(0, (4, 3)))
        axes.locator_params(axis="x", nbins=4)


def _deadlines(axes: Any, d: Description) -> None:
    places = -np.arange(len(d.deadlines))
    axes.barh(places, [o.round_time for o in d.deadlines], color=_AMBER, height=0.5)
    longest = max(o.round_time for o in d.deadlines)
    for place, outlook in zip(places, d.deadlines, strict=True):
        words = f"{seconds(outlook.round_time)}, {percent(outlook.in_time)} done"
        axes.text(outlook.round_time + 0.02 * longest, place, words, va="center", size=8.5, color=_INK)
    names = [o.name if o.deadline is None else f"{o.name}\n({seconds(o.deadline)})" for o in d.deadlines]
    _plain(axes, "Round time under deadlines", "done: complete updates that are there by then")
    axes.grid(False)
    axes.set_yticks(places, names)
    axes.tick_params(axis="y", labelcolor=_INK)
    axes.set_xticks([])
    axes.set_xlim(0, 1.62 * longest)
    axes.set_ylim(0.4 - max(4, len(d.deadlines)), 0.6)
    axes.spines["bottom"].set_visible(False)


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#1f2933;max-width:1080px;margin:2rem auto;padding:0 1rem}"
    "img{width:100%;height:auto}table{border-collapse:collapse;margin:1rem 0}"
    "td{padding:.25rem 1rem .25rem 0;border-bottom:1px solid #e4e7eb}td+td{text-align:right;"
    "font-variant-numeric:tabular-nums}li{margin:.6rem 0}.why{color:#616e7c}h1{margin-bottom:0}"
    ".tables{display:flex;flex-wrap:wrap;gap:0 3rem;align-items:flex-start}"
)


def render_html(description: Description, data: FederatedData, path: str | Path) -> None:
    """One page that needs nothing else: words, picture, numbers."""
    d = description
    picture = BytesIO()
    render_png(d, data, picture)
    encoded = base64.b64encode(picture.getvalue()).decode()
    advice = "".join(
        f"<li><b>{html.escape(finding)}</b>: {html.escape(remedy)}. "
        f'<span class="why">{html.escape(why[:1].upper() + why[1:])}.</span></li>'
        for finding, remedy, why in d.advice
    )
    title = html.escape(f"{d.dataset}: {d.clients:,} clients")
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        f"<h1>{title}</h1><p class=why>Fleet: {html.escape(' + '.join(d.fleet[1:]) or 'ideal')}</p>"
        f"<p>{html.escape(d.summary)}</p><ul>{advice}</ul>"
        f'<img alt="{html.escape(_alt(d))}" src="data:image/png;base64,{encoded}">'
        f'<div class="tables">{_tables(d)}</div></body></html>\n'
    )
    Path(path).write_text(page, encoding="utf-8")


def _alt(d: Description) -> str:
    return f"Client sizes, label mix, speeds, round times and expected rates of {d.clients:,} clients"


def _tables(d: Description) -> str:
    data = {
        "samples": f"{d.samples:,}",
        "classes": str(d.classes),
        "smallest and largest client": f"{d.size_min:,} and {d.size_max:,}",
        "mean size": f"{d.size_mean:,.1f} ± {d.size_std:,.1f}",
        "Gini of sizes": f"{d.gini:.3f}",
        "C-score (0 to 2)": f"{d.c_score:.3f}",
        "EMD to the whole (0 to 2)": f"{d.emd:.3f}",
        "Jensen-Shannon of two clients (bits)": f"{d.js:.3f}",
        "Kullback-Leibler of two clients (bits)": f"{d.kl:.3f}",
        "classes a client holds": f"{d.classes_per_client:.1f}",
        "classes a cohort misses": percent(d.classes_missed_by_cohort),
        "cohorts that miss a class": percent(d.cohorts_missing_a_class),
    }
    world = {
        "mean round time": seconds(d.round_time),
        "median task time": seconds(d.task_time_quantiles["50%"]),
        "fast over slow devices": f"{d.speed_ratio:.1f}",
        "stragglers": percent(d.straggler_rate),
        **{f"stragglers: {words}": percent(d.straggler_causes[name]) for name, words in _CAUSES.items()},
        "dropouts": percent(d.dropout_rate),
        "away": percent(d.absence_rate),
        "updates lost": percent(d.loss_rate),
        "participation entropy (0 to 1)": f"{d.participation_entropy:.3f}",
        **{f"time spent: {stage}": percent(share) for stage, share in d.stages.items()},
    }
    return "".join(_table(rows) for rows in (data, world))


def _table(rows: dict[str, str]) -> str:
    cells = (f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>" for name, value in rows.items())
    return f"<table>{''.join(cells)}</table>"
