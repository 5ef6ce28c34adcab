"""A progress bar for people: round, accuracy, clients per second, virtual time, remaining time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from motley.core.wording import duration, score_text
from motley.runtime.launch import Result, Run
from motley.runtime.listeners import Listener
from motley.runtime.records import Record

WIDE = 100  # columns of a terminal below which a bar shows round, score and remaining time alone


class Speed:
    """Clients per second over the last rounds, by an exponential mean of the time one client takes."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._seconds: float | None = None

    def __call__(self, clients: int) -> float:
        now = time.perf_counter()
        if clients:
            each = (now - self._last) / clients
            self._seconds = each if self._seconds is None else 0.8 * self._seconds + 0.2 * each
        self._last = now
        return 1.0 / self._seconds if self._seconds else 0.0


class ProgressBar(Listener):
    """A bar on stderr that moves with every round; silent where ``shown`` is false. It knows how far a run came."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self.rounds = 0  # finished
        self.folder: Path | None = None  # of the run under way
        self._bar: Any = None
        self._task: Any = None
        self._speed = Speed()

    def begun(self, run: Run) -> None:
        self.rounds, self.folder = len(run.records), run.folder
        self.close()
        if not self.shown:
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        numbers = (MofNCompleteColumn(), TextColumn("[green]{task.fields[score]}"))
        remaining = TimeRemainingColumn(compact=True)
        columns: tuple[ProgressColumn, ...] = (*numbers, remaining)  # all that a narrow terminal has room for
        if console.width >= WIDE:
            what = (TextColumn("{task.description}"), BarColumn(bar_width=24))
            pace = (TextColumn("{task.fields[speed]}"), TextColumn("[dim]virtual {task.fields[virtual]}"))
            columns = (*what, *numbers, *pace, remaining)
        recipe = run.recipe
        self._bar = Progress(*columns, console=console, transient=True)
        self._bar.start()
        headline = run.experiment.problem.headline
        self._task = self._bar.add_task(
            f"{recipe.name} [dim]{recipe.method} seed {recipe.seed}[/]",
            total=recipe.rounds,
            completed=self.rounds,
            score=f"{headline} -",
            speed="",
            virtual="0 s",
        )
        self._speed = Speed()

    def round_ended(self, run: Run, record: Record) -> None:
        self.rounds = record.round
        if self._bar is None:
            return
        headline = run.experiment.problem.headline
        if headline in record.scores:
            self._bar.update(self._task, score=f"{headline} {score_text(headline, record.scores[headline])}")
        rate = f"{self._speed(record.participants):.0f} clients/s"
        self._bar.update(self._task, completed=record.round, speed=rate, virtual=duration(record.virtual_time))

    def finished(self, run: Run, result: Result) -> None:
        self.close()

    def close(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
