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
) -> None:
    """Compare runs: a table, and accuracy against rounds, virtual time and bytes, with a band over seeds."""
    target = out or (runs[0] if len(runs) == 1 else Path("runs") / "report")
    mode = OutputMode(as_json)
    mode.end(write_report(runs, target, mode))


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
