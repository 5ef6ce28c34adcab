"""The command ``motley``: what commands there are, and what becomes of their errors.

Exit codes: 0 done, 2 wrong input, 130 interrupted, 1 anything else.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import warnings
from collections.abc import Container
from typing import Annotated, NoReturn

import typer

import motley
from motley.commands import benchmarks as bench
from motley.commands import describe, exports, listing, new_project, tune
from motley.commands import reporting as report
from motley.commands import runs as run
from motley.commands.output import IMPORTED, Interrupted
from motley.core.errors import InputError, MotleyError

DEBUG = "MOTLEY_DEBUG"

# Commands whose modules take long to import are loaded when they are called: where they are, and what help says.
LATER = {
    "reproduce": ("motley.commands.reproductions", "reproduce", "Measure a paper's tables and figures again."),
    "serve": ("motley.commands.deployment", "serve", "Serve a recipe to real clients."),
    "invite": ("motley.commands.deployment", "invite", "Print an invitation: one line for one agent."),
    "join": ("motley.commands.deployment", "join", "Take part in a federation with this machine's data."),
    "status": ("motley.commands.operators", "status", "Show who is there, what they do, and what is wrong."),
    "evict": ("motley.commands.operators", "evict", "Throw an agent out."),
    "replay": ("motley.commands.operators", "replay", "Make the model of a deployed run again from its log."),
    "rehearse": ("motley.commands.deployment", "rehearse", "Rehearse a deployment on this machine."),
    "agents": ("motley.commands.deployment", "agents", "Several agents of a rehearsal in one process."),
    "privacy": ("motley.commands.privacy", "app", "What could be learned from the things clients send."),
}
HIDDEN = ("agents",)  # what Motley itself starts as processes


TRAINING = {"run", "resume", "describe", "tune", "bench", "reproduce"}  # commands that need torch


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(motley.__version__)
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="Import a module of yours first, or a file; may be repeated."),
    ] = None,
) -> None:
    from motley.core.plugins import import_modules

    IMPORTED[:] = imports or []
    import_modules(IMPORTED)


def build(called: Container[str]) -> typer.Typer:
    """The command, with those of the later ones loaded that are called, and the names of the others."""
    made = typer.Typer(
        name="motley",
        help="Federated learning where clients are nothing alike.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_root)
    made.command("run")(run.run)
    made.command("resume")(run.resume)
    made.command("list")(listing.show)
    made.command("describe")(describe.describe)
    made.command("report")(report.report)
    made.command("export")(exports.export)
    made.command("new")(new_project.new)
    made.command("tune")(tune.tune)
    made.add_typer(bench.app, name="bench")
    for name, (module, attribute, summary) in LATER.items():
        found = getattr(importlib.import_module(module), attribute) if name in called else None
        if isinstance(found, typer.Typer):
            made.add_typer(found, name=name)
        else:
            given = summary if found is None else None
            made.command(name, help=given, hidden=name in HIDDEN)(found or (lambda: None))
    return made


def __getattr__(name: str) -> typer.Typer:
    """`motley.commands.cli.app` is the whole command."""
    if name != "app":
        raise AttributeError(f"module 'motley.commands.cli' has no attribute '{name}'")
    return build(LATER)


def main() -> NoReturn:
    """Runs the command and turns errors into a sentence and an exit code."""
    called = _called(sys.argv[1:])
    warnings.formatwarning = _warned
    try:
        command = build(called)
        _import_for(called)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, _terminated)
        command(prog_name="motley")
    except (Interrupted, KeyboardInterrupt) as stopped:
        _interrupted(stopped)
    except SystemExit as ended:
        if ended.code == 130:  # so the command line's own library ends on Ctrl-C, without a word
            _end("Interrupted.", 130)
        raise
    except InputError as error:
        _fail(error, 2)
    except MotleyError as error:
        _fail(error, 1)
    except ModuleNotFoundError as error:
        _end(_missing(error), 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        _unexpected(error)
    sys.exit(0)


def _interrupted(stopped: BaseException) -> NoReturn:
    _end(str(stopped) or "Interrupted.", 130)


def _unexpected(error: Exception) -> NoReturn:
    told = f"{type(error).__name__}: {error}".strip().rstrip(".:")
    _end(f"Motley failed unexpectedly: {told}. Set {DEBUG}=1 to see the traceback.", 1)


def _warned(message: Warning | str, *_: object, **__: object) -> str:
    """A warning as a sentence, without the line of code that gave it."""
    return f"Warning: {message}\n"


def _called(arguments: list[str]) -> list[str]:
    """The command among the arguments: the first that is neither an option nor what is imported."""
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] == "--import" else rest[1:]
    return rest[:1]


def _import_for(called: list[str]) -> None:
    """Takes in what takes long, for a command that needs it, while Ctrl-C still ends the process where it stands."""
    if set(called) & TRAINING and not {"-h", "--help"} & set(sys.argv):
        importlib.import_module("motley.runtime.launch")


def _terminated(*_: object) -> None:
    """A polite end (SIGTERM) leaves a resumable run like Ctrl-C."""
    raise KeyboardInterrupt


def _missing(error: ModuleNotFoundError) -> str:
    """What to install where a library is not there."""
    name = (error.name or "").split(".")[0]
    extra = "[deploy]" if name in ("msgspec", "cryptography") else ""
    return f"Error: The library '{name}' is not installed; install it with: pip install 'motley-fl{extra}'."


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
