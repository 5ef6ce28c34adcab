"""What the commands share: how they speak to people and to machines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="For machines: JSON on the last line of stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="One line per run; so it is where stdout is no terminal.")]


IMPORTED: list[str] = []
"""The modules that this command was told to import; recipes it runs remember them."""


class Interrupted(Exception):  # noqa: N818
    """Ctrl-C, with the sentence that says how to go on."""


@dataclass(frozen=True)
class OutputMode:
    """Who listens: a person at a terminal, a log, or a machine."""

    json: bool = False
    quiet: bool = False

    @property
    def silent(self) -> bool:
        """No progress and no tables: the listener is no person at a terminal, or asked for quiet."""
        return self.quiet or not sys.stdout.isatty()

    def say(self, text: str) -> None:
        """Something for people."""
        if not self.json:
            typer.echo(text)

    def end(self, content: Any) -> None:
        """The last line, for machines."""
        if self.json:
            with perhaps_unread():
                sys.stdout.write(json.dumps(content) + "\n")


@contextmanager
def perhaps_unread() -> Iterator[None]:
    """Output that nobody may be there to read (``motley run ... | head``): what was trained is not lost by that."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def shown(path: Path | str) -> str:
    """A path as a person would type it: relative to here where it lies below."""
    path = Path(path)
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
