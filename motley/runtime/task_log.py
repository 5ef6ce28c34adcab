"""``events.jsonl``: what happened to every task, one line each, in the order in which it happened.

Lines are written round by round, before the round is saved, and a checkpoint remembers how long the log was: a run that
is taken up again cuts it there, so that nothing is told twice.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motley.core.tasks import Event
from motley.runtime.listeners import Listener
from motley.runtime.records import Record

if TYPE_CHECKING:
    from motley.runtime.launch import Result, Run

NAME = "events.jsonl"


class EventLog(Listener):
    """Writes what happens to tasks into the directory of a run."""

    def __init__(self) -> None:
        self.lines: list[str] = []  # not yet written
        self.path: Path | None = None
        self._costs: Any = None

    def begun(self, run: Run) -> None:
        if run.folder is None:
            return
        self.path = run.folder / NAME
        self._costs = getattr(run.carrier, "costs", None)
        self.path.touch()
        os.truncate(self.path, min(self.path.stat().st_size, int(run.measures.get(NAME, 0))))
        run.fed.ledger.book.events = self.note

    def note(self, event: Event) -> None:
        """Remembers one event until the round ends."""
        row = {"time": event.time, "what": event.what, "client": event.client, "round": event.round, **event.facts}
        given = row.pop("assignment", None)
        if given is not None:
            row |= {"epochs": given.epochs, "lr": given.lr}
            if self._costs is not None:
                row["bytes_down"] = self._costs.download_bytes(given)
        told = {key: value for key, value in row.items() if not isinstance(value, float) or math.isfinite(value)}
        self.lines.append(json.dumps(told) + "\n")

    def round_ended(self, run: Run, record: Record) -> None:
        self._write()
        if self.path is not None:
            run.measures[NAME] = self.path.stat().st_size

    def finished(self, run: Run, result: Result) -> None:
        self._write()

    def _write(self) -> None:
        if self.path is not None and self.lines:
            with self.path.open("a") as log:
                log.writelines(self.lines)
            self.lines.clear()


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The events of a run; a last line that was cut off is left out."""
    rows = []
    for line in (folder / NAME).read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
