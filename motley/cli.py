"""The command ``motley``: what commands there are, and what becomes of their errors.

Exit codes: 0 done, 2 wrong input, 130 interrupted, 1 anything else.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, NoReturn

import typer

import motley
from motley.commands import bench, describe, listing, report, run, tune
from motley.commands.tools import Interrupted
from motley.core.errors import InputError, MotleyError
from motley.reproduce import privacy
from motley.reproduce.command import reproduce

DEBUG = "MOTLEY_DEBUG"

app = typer.Typer(
    name="motley",
    help="Federated learning where clients are nothing alike.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("resume")(run.resume)
app.command("list")(listing.show)
app.command("describe")(describe.describe)
app.command("report")(report.report)
app.command("reproduce")(reproduce)
app.add_typer(privacy.app, name="privacy")
app.command("tune")(tune.tune)
app.add_typer(bench.app, name="bench")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(motley.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Runs the command and turns errors into a sentence and an exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        app(prog_name="motley")
    except (Interrupted, KeyboardInterrupt) as stopped:
        _end(str(stopped) or "Interrupted.", 130)
    except InputError as error:
        _fail(error, 2)
    except MotleyError as error:
        _fail(error, 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        told = f"{type(error).__name__}: {error}".strip().rstrip(".:")
        _end(f"Motley failed unexpectedly: {told}. Set {DEBUG}=1 to see the traceback.", 1)
    sys.exit(0)


def _terminated(*_: object) -> None:
    """A polite end (SIGTERM) leaves a resumable run like Ctrl-C."""
    raise KeyboardInterrupt


def _fail(error: MotleyError, code: int) -> NoReturn:
    if os.environ.get(DEBUG):
        raise error
    _end(f"Error: {error}", code)


def _end(sentence: str, code: int) -> NoReturn:
    sys.stdout.flush()
    print(sentence, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
