"""A progress bar for people: round, accuracy, clients per second, virtual time, remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from motley.report.tables import duration, per_cent
from motley.run.recipe import Recipe
from motley.run.records import Record


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


@contextmanager
def progress(recipe: Recipe, shown: bool) -> Iterator[Callable[[Record], None]]:
    """Gives an observer of records that moves a bar on stderr; silent where ``shown`` is false."""
    if not shown:
        yield lambda record: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("[green]{task.fields[accuracy]}"),
        TextColumn("{task.fields[speed]}"),
        TextColumn("[dim]virtual {task.fields[virtual]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(
            f"{recipe.name} [dim]{recipe.method} seed {recipe.seed}[/]",
            total=recipe.rounds,
            accuracy="accuracy -",
            speed="",
            virtual="0 s",
        )
        speed = Speed()
        seen = False

        def observer(record: Record) -> None:
            nonlocal seen
            if not seen and record.round > 1:  # resumed: what is done already took no time now
                bar.reset(task, completed=record.round - 1)
            seen = True
            if record.accuracy is not None:
                bar.update(task, accuracy=f"accuracy {per_cent(record.accuracy)}")
            rate = f"{speed(record.participants):.0f} clients/s"
            bar.update(task, completed=record.round, speed=rate, virtual=duration(record.virtual_time))

        yield observer
