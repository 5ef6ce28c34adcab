"""``motley bench``: measurements of Motley itself."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from motley.commands.tools import AsJson, Voice

app = typer.Typer(help="Measure Motley itself.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `overhead` a command of its own however many there are."""


def show_rows(rows: list[dict[str, Any]], title: str) -> None:
    """Measured rows as a table for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for key in rows[0]:
        table.add_column(key.replace("_", " "), justify="left" if isinstance(rows[0][key], str) else "right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(highlight=False).print(table)


@app.command()
def overhead(
    repeats: Annotated[int, typer.Option(min=1, help="Rounds measured; the median counts.")] = 5,
    as_json: AsJson = False,
) -> None:
    """One round of the loop executor beside a bare PyTorch loop that does the same steps."""
    from motley.bench.overhead import overhead as measured

    rows = measured(repeats)
    if not as_json:
        show_rows(rows, "One round of 'loop' against a bare PyTorch loop (ratio 1.00: no overhead)")
    Voice(as_json).end(rows)
