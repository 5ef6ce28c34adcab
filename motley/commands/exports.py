"""``motley export``: the trained model of a run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from motley.commands.output import AsJson, OutputMode, shown


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN|FILE", help="The directory of a finished run, or a saved model.")],
    to: Annotated[
        str, typer.Option("--to", metavar="FORM", help="state_dict, torchscript, torch.export or onnx.")
    ] = "torchscript",
    out: Annotated[Path | None, typer.Option("--out", help="The file; beside the run's own model unless told.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's model for other programs: raw inputs go in, their scaling is part of it."""
    from motley.runtime.exporting import export as write

    mode = OutputMode(as_json)
    path = write(run, out, to)
    mode.say(f"Model ({to}): {shown(path)}")
    mode.end({"model": str(path), "form": to, "bytes": path.stat().st_size})
