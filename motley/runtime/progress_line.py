"""One line that tells how far a run in Python has come: at a terminal and in a notebook, rewritten in place."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Literal, TextIO

from motley.core.errors import InputError
from motley.core.wording import duration, score_text
from motley.runtime.listeners import Listener
from motley.runtime.records import Record

if TYPE_CHECKING:
    from motley.runtime.launch import Result, Run

Progress = bool | Literal["auto"]
SECONDS = 0.1  # between two looks of the line, at least


def in_notebook() -> bool:
    """Whether this process serves a notebook, which shows standard output and takes a carriage return."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def progress_listeners(wanted: Progress) -> list[Listener]:
    """The line, if it is wanted; ``"auto"``: where a person watches, at a terminal or in a notebook."""
    if wanted not in (True, False, "auto"):
        raise InputError(f"progress is {wanted!r}; it must be True, False or 'auto'.")
    stream = sys.stdout if in_notebook() else sys.stderr
    if wanted is True or (wanted == "auto" and (in_notebook() or stream.isatty())):
        return [ProgressLine(stream)]
    return []


class ProgressLine(Listener):
    """``train 12/50  accuracy 61.2 %  virtual 3.4 s  4.1 s left``"""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._length = 0  # of what stands there now
        self._score = ""
        self._shown_at = float("-inf")
        self._begun, self._before = time.perf_counter(), 0

    def begun(self, run: Run) -> None:
        self._begun, self._before = time.perf_counter(), len(run.records)
        self._score = ""

    def round_ended(self, run: Run, record: Record) -> None:
        headline = run.experiment.problem.headline
        if headline in record.scores:
            self._score = f"  {headline} {score_text(headline, record.scores[headline])}"
        if time.perf_counter() - self._shown_at >= SECONDS:
            self._show(run, record)

    def finished(self, run: Run, result: Result) -> None:
        self._show(run, result.records[-1])
        self.stream.write("\n")
        self.stream.flush()
        self._length = 0

    def _show(self, run: Run, record: Record) -> None:
        now = time.perf_counter()
        done = record.round - self._before
        left = (now - self._begun) / done * (run.recipe.rounds - record.round) if done and not run.fed.stopping else 0.0
        text = f"{run.recipe.name} {record.round}/{run.recipe.rounds}{self._score}"
        text += f"  virtual {duration(record.virtual_time)}" + (f"  {duration(left)} left" if left else "")
        self.stream.write("\r" + text.ljust(self._length))
        self.stream.flush()
        self._length, self._shown_at = len(text), now
