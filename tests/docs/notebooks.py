"""Notebooks without Jupyter: their code cells run in order, and what they print and draw is kept beside them.

`python -m tests.docs.notebooks` runs those of docs/tutorials anew and stores their outputs.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

TUTORIALS = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text())
    return notebook


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def outputs_of(path: Path) -> Iterator[list[dict[str, Any]]]:
    """What each code cell gives when all are run in order, in one namespace and an empty directory."""
    names: dict[str, Any] = {"__name__": f"tutorial_{path.stem}"}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for number, cell in enumerate(code_cells(read(path)), 1):
            printed = StringIO()
            with redirect_stdout(printed):
                exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec", dont_inherit=True), names)
            yield [*_text(printed.getvalue()), *_pictures()]


def _text(printed: str) -> Iterator[dict[str, Any]]:
    if printed:
        yield {"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)}


def _pictures() -> Iterator[dict[str, Any]]:
    """The figures that are open, which are closed by this."""
    from matplotlib import pyplot as plt

    for number in plt.get_fignums():
        drawn = BytesIO()
        plt.figure(number).savefig(drawn, format="png", dpi=70, metadata={"Software": None})
        data = {"image/png": base64.b64encode(drawn.getvalue()).decode(), "text/plain": ["<Figure>"]}
        yield {"data": data, "metadata": {}, "output_type": "display_data"}
    plt.close("all")


def store(path: Path) -> None:
    """Runs a notebook and writes it with its outputs."""
    notebook = read(path)
    cells = code_cells(notebook)
    for number, (cell, outputs) in enumerate(zip(cells, outputs_of(path), strict=True), 1):
        cell["outputs"], cell["execution_count"] = outputs, number
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    os.environ["MPLBACKEND"] = "Agg"
    for found in TUTORIALS:
        store(found)
