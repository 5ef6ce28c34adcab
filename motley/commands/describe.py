"""``motley describe``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from motley.commands.output import AsJson, OutputMode, shown
from motley.commands.runs import Overrides


def describe(
    recipe: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A recipe: its name or a TOML file.")],
    overrides: Overrides = None,
    as_json: AsJson = False,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Draw a picture of it.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write one self-contained page.")] = None,
) -> None:
    """Tell how heterogeneous data and fleet are, and what may help, before a single step is trained."""
    from rich.console import Console

    from motley.report.description import describe_experiment
    from motley.report.description_figure import render_html, render_png
    from motley.report.description_terminal import render_terminal
    from motley.runtime.experiment import prepare
    from motley.runtime.recipe import load

    experiment = prepare(load(recipe, overrides or []))
    description = describe_experiment(experiment)
    if not as_json:
        Console().print(render_terminal(description))
    for render, path, what in ((render_png, png, "Picture"), (render_html, html, "Page")):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            render(description, experiment.data, path)
            if not as_json:
                typer.echo(f"{what}: {shown(path)}")
    OutputMode(as_json).end(description.to_dict())
