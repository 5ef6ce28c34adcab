"""``motley report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from motley.commands.output import AsJson, OutputMode, shown


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs.")],
    as_json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write; the directory of a single run, or runs/report.")
    ] = None,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Draw who trained when, late and lost ones too.")
    ] = False,
    target: Annotated[
        float | None, typer.Option("--target", metavar="SCORE", help="Tell the rounds, seconds and bytes to a score.")
    ] = None,
    frontier: Annotated[
        bool, typer.Option("--frontier", help="Draw the score against time and bytes, and which runs are best.")
    ] = False,
) -> None:
    """Compare runs: a table, and accuracy against rounds, virtual time and bytes, with a band over seeds."""
    place = out or (runs[0] if len(runs) == 1 else Path("runs") / "report")
    mode = OutputMode(as_json)
    told = write_report(runs, place, mode)
    if timeline:
        told["timelines"] = _timelines(runs, place, mode)
    if target is not None:
        told["target"] = _target(runs, place, target, mode)
    if frontier:
        told["frontier"] = _frontier(runs, place, mode)
    mode.end(told)


def _timelines(runs: list[Path], place: Path, mode: OutputMode) -> list[str]:
    from motley.report.timeline import plot_timeline

    drawn = []
    for folder in runs:
        name = "timeline.png" if len(runs) == 1 else f"timeline-{folder.resolve().name}.png"
        drawn.append(str(plot_timeline(folder, place / name)))
        mode.say(f"Timeline: {shown(drawn[-1])}")
    return drawn


def _target(runs: list[Path], place: Path, target: float, mode: OutputMode) -> list[dict[str, Any]]:
    from motley.report.run_data import group, read_run
    from motley.report.targets import target_rows, target_table

    groups = group([read_run(folder) for folder in runs])
    table = target_table(groups, target)
    (place / "target.md").write_text(table, encoding="utf-8")
    mode.say(f"\n{table}\nTable: {shown(place / 'target.md')}")
    return target_rows(groups, target)


def _frontier(runs: list[Path], place: Path, mode: OutputMode) -> dict[str, Any]:
    from motley.report.run_data import group, read_run
    from motley.report.targets import frontier_rows, plot_frontier

    groups = group([read_run(folder) for folder in runs])
    image = plot_frontier(groups, place / "frontier.png")
    mode.say(f"Frontier: {shown(image)}")
    return {"rows": frontier_rows(groups), "plot": str(image)}


def write_report(runs: list[Path], target: Path, mode: OutputMode) -> dict[str, Any]:
    """Writes table and plot, shows the table, and says where both are."""
    from motley.report.plots import plot
    from motley.report.run_data import group, read_run
    from motley.report.summary_tables import markdown, rows

    groups = group([read_run(folder) for folder in runs])
    target.mkdir(parents=True, exist_ok=True)
    table = markdown(groups)
    image = plot(groups, target / "report.png")
    page = target / "report.md"
    page.write_text(f"# Report\n\n{table}\n![Accuracy](report.png)\n", encoding="utf-8")
    if not mode.json:
        typer.echo(f"\n{table}\nPlot:  {shown(image)}\nTable: {shown(page)}")
    return {"rows": rows(groups), "plot": str(image), "table": str(page)}
