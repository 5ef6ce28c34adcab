"""Tables: for people at a terminal, and as markdown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from statistics import pstdev
from typing import Any

from motley.core.wording import duration, megabytes, score_text
from motley.report.run_data import Group, RunData, mean_and_interval
from motley.runtime.guarantee import sentence as privacy_text
from motley.runtime.recipe import Recipe


def swing(run: RunData) -> float:
    """How much the headline goes up and down at the end: its standard deviation over the last quarter of the rounds."""
    tail = run.history[-max(2, len(run.history) // 4) :]
    return pstdev(tail) if len(tail) > 1 else 0.0


def rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """One row per group: means over its seeds, with a 95 % interval of the headline score."""
    return [_row(one) for one in groups]


def _row(one: Group) -> dict[str, Any]:
    score, interval = mean_and_interval([run.history[-1] for run in one.runs])

    def mean(of: Callable[[RunData], float]) -> float:
        return mean_and_interval([of(run) for run in one.runs])[0]

    def total(key: str) -> float:
        return mean(lambda run: sum(getattr(record, key) for record in run.records))

    return {
        "label": one.label,
        "runs": [str(run.folder) for run in one.runs],
        "seeds": [run.recipe.seed for run in one.runs],
        "finished": all(run.summary is not None for run in one.runs),
        "rounds": min(run.records[-1].round for run in one.runs),
        "headline": one.headline,
        one.headline: score,
        f"{one.headline}_interval": interval,
        f"best_{one.headline}": mean(lambda run: run.best),
        "swing": mean(swing),
        "virtual_time": mean(lambda run: run.records[-1].virtual_time),
        "bytes_up": total("bytes_up"),
        "bytes_down": total("bytes_down"),
        "lost": total("lost"),
        "late": total("late"),
        "wall_s": mean(lambda run: run.records[-1].wall_time),
    }


def markdown(groups: Sequence[Group]) -> str:
    """The same as a table in markdown."""
    name = groups[0].headline
    heads = ["run", "seeds", "rounds", name, "best", "swing", "virtual time", "up", "down", "lost", "late"]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for row in rows(groups):
        lines.append(
            [
                row["label"] + ("" if row["finished"] else " (unfinished)"),
                str(len(row["seeds"])),
                str(row["rounds"]),
                score_text(row["headline"], row[row["headline"]], row[f"{row['headline']}_interval"]),
                score_text(row["headline"], row[f"best_{row['headline']}"]),
                score_text(row["headline"], row["swing"]),
                duration(row["virtual_time"]),
                megabytes(row["bytes_up"]),
                megabytes(row["bytes_down"]),
                f"{row['lost']:g}",
                f"{row['late']:g}",
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    text = ["| " + " | ".join(_pad(cell, widths[i], i) for i, cell in enumerate(line)) + " |" for line in lines]
    title = name[0].upper() + name[1:]
    note = f"{title}: of the last round, mean and 95 % interval over seeds. Swing: its deviation over the last quarter."
    return "\n".join(text) + f"\n\n{note}\n"


def _pad(cell: str, width: int, column: int) -> str:
    if set(cell) <= set("-:"):
        return "-" * width if column == 0 else "-" * (width - 1) + ":"
    return cell.ljust(width) if column == 0 else cell.rjust(width)


# ------------------------------------------------------------------------------------------ at the terminal


def print_summary(recipe: Recipe, summary: dict[str, Any], quiet: bool) -> None:
    """The end of a run: one line, or a small table."""
    headline = summary["headline"]
    if quiet:
        sys.stdout.write(
            f"{summary['run']}: {headline} {score_text(headline, summary[headline])} after "
            f"{_trained(recipe, summary)} (seed {summary['seed']}, {duration(summary['wall_s'])})\n"
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    methods = recipe.method if not recipe.phases else f"{len(recipe.phases)} phases"
    table.add_row("recipe", f"[bold]{recipe.name}[/] with {methods}, seed {summary['seed']}")
    best, last = (score_text(headline, summary[key]) for key in (f"best_{headline}", headline))
    table.add_row(headline, f"[bold green]{last}[/] (best {best}) in {summary['rounds']} rounds")
    if recipe.phases:
        table.add_row("phases", _trained(recipe, summary))
    if summary["ended"] != "rounds":
        table.add_row("ended by", str(summary["ended"]))
    table.add_row("virtual time", duration(summary["virtual_time"]))
    table.add_row("traffic", f"{megabytes(summary['bytes_up'])} up, {megabytes(summary['bytes_down'])} down")
    if summary["lost"] or summary["late"]:
        table.add_row("updates", f"{summary['lost']} lost, {summary['late']} late")
    if "privacy" in summary:
        table.add_row("privacy", privacy_text(summary["privacy"]))
    table.add_row("wall time", f"{duration(summary['wall_s'])} ({summary['executor']})")
    table.add_row("saved in", summary["run"])
    Console(highlight=False).print(table)


def _trained(recipe: Recipe, summary: dict[str, Any]) -> str:
    """How many rounds of what."""
    if not recipe.phases:
        return f"{summary['rounds']} rounds of {recipe.method}"
    methods = {one["name"]: one.get("method", recipe.method) for one in recipe.phases if "name" in one}
    told = summary["phases"].items()
    rounds = [
        f"{one['rounds']} rounds of {methods.get(name, recipe.method)} ({name})"
        for name, one in told
        if "rounds" in one
    ]
    return ", then ".join(rounds)


def print_spread(summaries: Sequence[dict[str, Any]], quiet: bool) -> None:
    """Several seeds: each, then mean and 95 % interval."""
    name = summaries[0]["headline"]
    mean, best = (
        score_text(name, *mean_and_interval([summary[key] for summary in summaries])) for key in (name, f"best_{name}")
    )
    if quiet:
        sys.stdout.write(f"{len(summaries)} seeds: {name} {mean}, best {best}\n")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{len(summaries)} seeds", show_footer=True, title_justify="left")
    table.add_column("seed", footer="mean ± 95 %", justify="right")
    table.add_column(name, footer=mean, justify="right")
    table.add_column("best", footer=best, justify="right")
    table.add_column("loss", footer=f"{mean_and_interval([s['loss'] for s in summaries])[0]:.3f}", justify="right")
    for one in summaries:
        cells = (score_text(name, one[name]), score_text(name, one[f"best_{name}"]), f"{one['loss']:.3f}")
        table.add_row(str(one["seed"]), *cells)
    Console(highlight=False).print(table)


def print_listing(kind: str, listed: Sequence[dict[str, Any]]) -> None:
    """What `motley list` shows to people."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    extras = [key for key in ("seam", "hooks", "parts", "protocol", "data", "method") if key in listed[0]]
    for head in ("name", *extras[:1], "arguments", *extras[1:], "summary"):
        table.add_column(head, overflow="fold", ratio=3 if head == "summary" else None)
    for row in listed:
        arguments = ", ".join(k if v is None else f"{k}={v}" for k, v in row.get("parameters", {}).items())
        cells = [_cell(row[key]) for key in extras]
        table.add_row(Text(row["name"], style="bold"), *cells[:1], Text(arguments), *cells[1:], Text(row["summary"]))
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    console.print(table)


def _cell(value: Any) -> Any:
    from rich.text import Text

    told = ", ".join(value) if isinstance(value, list) else value
    return Text("" if told is None else str(told))
