"""A description on one page of a terminal: numbers, small bars, a heat map of letters, and words."""

from __future__ import annotations

import numpy as np
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from motley.report.advice import percent, seconds
from motley.report.description import Description, Histogram

_BARS = " ▁▂▃▄▅▆▇█"
_SHADES = " ·░▒▓█"
_CLASSES, _COLUMNS = 12, 40  # rows and columns of the heat map


def render_terminal(description: Description) -> RenderableType:
    """The whole page; print it with ``rich.print``."""
    d = description
    blocks = Columns([_data(d), _world(d), _heat(d), _deadlines(d)], equal=True, padding=(1, 3))
    title = f"[bold]{d.dataset}[/] · {d.clients:,} clients"
    fleet = Text.assemble(("on the fleet ", "dim"), " + ".join(d.fleet[1:]) or "ideal")
    words = Group(Text(d.summary), *(_advice(d)))
    return Panel(
        Group(Padding(fleet, (0, 0, 1, 0)), blocks, Padding(words, (1, 0, 0, 0))), title=title, border_style="dim"
    )


def sparkline(histogram: Histogram) -> str:
    """A histogram as one line of blocks; anything above zero is visible."""
    counts = np.array(histogram.counts, float)
    if len(counts) == 1:
        return _BARS[-1]
    counts = np.add.reduceat(counts, np.arange(0, len(counts), 2)) if len(counts) > 16 else counts
    level = np.ceil(counts / counts.max() * (len(_BARS) - 1)).astype(int)
    return "".join(_BARS[i] for i in level)


def bar(share: float, width: int = 10) -> str:
    """A share as a bar of blocks."""
    full = round(max(0.0, min(1.0, share)) * width)
    return "█" * full + "░" * (width - full)


def _table(title: str, rows: list[tuple[str, str, str]]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True, min_width=16)
    table.add_column(justify="right", no_wrap=True, min_width=8)
    table.add_column(style="cyan", max_width=27)
    table.add_row(Text(title, style="bold"), "", "")
    for row in rows:
        table.add_row(*row)
    return table


def _range(histogram: Histogram, low: str, high: str) -> str:
    return f"{low} {sparkline(histogram)} {high}" if len(histogram.counts) > 1 else "all alike"


def _data(d: Description) -> Table:
    sizes = _range(d.size_histogram, f"{d.size_min:,}", f"{d.size_max:,}")
    table = _table(
        "Data",
        [
            ("samples", f"{d.samples:,}", f"{d.classes} classes, {d.classes_per_client:.1f} a client"),
            ("a client holds", f"{d.size_mean:,.1f}", f"± {d.size_std:,.1f}"),
            ("Gini of sizes", f"{d.gini:.2f}", bar(d.gini)),
            ("C-score", f"{d.c_score:.2f}", f"{bar(d.c_score / 2)} of 2"),
            ("EMD to the whole", f"{d.emd:.2f}", f"{bar(d.emd / 2)} of 2"),
            ("JS between two", f"{d.js:.2f}", f"{bar(d.js)} of 1 bit"),
            ("KL between two", f"{d.kl:.2f}", "bits"),
            ("classes missed", percent(d.classes_missed_by_cohort), f"{bar(d.classes_missed_by_cohort)} by a cohort"),
            ("miss any", percent(d.cohorts_missing_a_class), f"{bar(d.cohorts_missing_a_class)} of cohorts"),
        ],
    )
    table.add_row("sizes", "", sizes)
    return table


def _world(d: Description) -> Table:
    causes = ", ".join(f"{name} {percent(share)}" for name, share in d.straggler_causes.items() if share > 0)
    speeds = [f"{d.speed_quantiles[q]:,.0f}" for q in ("5%", "95%")]
    quick, slow = d.task_time_quantiles["5%"], d.task_time_quantiles["95%"]
    table = _table(
        "Fleet",
        [
            ("a round takes", seconds(d.round_time), f"{d.cohort} clients, {d.epochs:g} epochs"),
            ("a task takes", seconds(d.task_time_quantiles["50%"]), f"90 %: {seconds(quick)} to {seconds(slow)}"),
            ("of it sending", percent(d.stages["download"] + d.stages["upload"] + d.stages["delay"]), ""),
            ("speed ratio", f"{d.speed_ratio:.1f} x", f"{' to '.join(speeds)} samples/s"),
            ("stragglers", percent(d.straggler_rate), bar(d.straggler_rate)),
            ("dropouts", percent(d.dropout_rate), bar(d.dropout_rate)),
            ("away", percent(d.absence_rate), f"lost {percent(d.loss_rate)}"),
            ("participation", f"{d.participation_entropy:.2f}", f"{bar(d.participation_entropy)} entropy of 1"),
            ("straggle by", "", causes or "nothing"),
        ],
    )
    table.add_row("speeds", "", _range(d.speed_histogram, "slow", "fast"))
    return table


def _heat(d: Description) -> Table:
    """Rows are classes, columns clients ordered by their main class; darker is a larger share of the client."""
    mixes = np.array(d.mixes)  # [R, C]
    common = np.sort(np.argsort(-np.array(d.mix), kind="stable")[:_CLASSES])
    kept = f"{len(mixes)} of {d.clients:,} clients" if len(mixes) < d.clients else f"{d.clients:,} clients"
    note = f", {len(common)} most common classes" if len(common) < d.classes else ""
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", justify="right")
    table.add_column(style="magenta", no_wrap=True)
    table.add_row("", Text(f"Label mix ({kept}{note})", style="bold"))
    level = np.ceil(mixes * (len(_SHADES) - 1)).astype(int).clip(0, len(_SHADES) - 1)
    step = -(-len(mixes) // _COLUMNS)  # columns must fit half a page
    for c in common:
        table.add_row(str(c), "".join(_SHADES[i] for i in level[::step, c]))
    return table


def _deadlines(d: Description) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="cyan", no_wrap=True)
    table.add_row(Text("Deadline", style="bold"), "", Text("round", style="dim"), Text("done by then", style="dim"))
    for outlook in d.deadlines:
        at = "" if outlook.deadline is None else seconds(outlook.deadline)
        share = f"{bar(outlook.in_time)} {percent(outlook.in_time)}"
        table.add_row(outlook.name, at, seconds(outlook.round_time), share)
    return _below(table, d)


def _below(table: Table, d: Description) -> Table:
    times = d.round_time_histogram
    spread = _range(times, seconds(times.edges[0]), seconds(times.edges[-1]))
    both = Table.grid()
    both.add_row(table)
    both.add_row(Text.assemble(("\nround times  ", "dim"), (spread, "cyan")))
    return both


def _advice(d: Description) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for finding, remedy, why in d.advice:
        text = Text.assemble(("● ", "yellow"), (f"{finding}: ", "bold"), f"{remedy}. ", (f"{_sentence(why)}.", "dim"))
        lines.append(text)
    return lines


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
