"""``motley bench``: measurements of Motley itself."""

from __future__ import annotations

import typer

app = typer.Typer(help="Measure Motley itself.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    pass
