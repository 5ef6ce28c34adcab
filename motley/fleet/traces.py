"""Reading recorded devices and recorded availability: JSON or CSV, never pickle.

JSON is an object of records by client id, or a list of records; CSV has a header row.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from motley.core.errors import DataError

_PICKLE = b"\x80"  # how every pickle since protocol 2 begins


def _records(path: str) -> list[dict[str, Any]]:
    """The records of a trace file, in the file's order."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(f"There is no trace file '{path}'; give the path of a JSON or CSV file.")
    with file.open("rb") as stream:
        start = stream.read(1)
    if start == _PICKLE or file.suffix.lower() in {".pkl", ".pickle"}:
        raise DataError(
            f"The trace file '{path}' is a pickle, which could run any code when read; "
            "convert it to JSON once, where you trust it: json.dump(pickle.load(source), target)."
        )
    try:
        records = _parsed(file)
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise DataError(f"The trace file '{path}' is neither JSON nor CSV that can be read: {error}.") from None
    rows = list(records.values()) if isinstance(records, dict) else records
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"The trace file '{path}' must hold records by client id, or a list of records.")
    return rows


def _parsed(file: Path) -> Any:
    text = file.read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines())) if file.suffix.lower() == ".csv" else json.loads(text)


def _column(path: str, rows: list[dict[str, Any]], name: str) -> NDArray[np.float64]:
    """One number of every record."""
    try:
        values = np.array([float(row[name]) for row in rows])
    except KeyError:
        raise DataError(f"The trace file '{path}' has records without '{name}'; every record needs it.") from None
    except (TypeError, ValueError):
        raise DataError(f"The trace file '{path}' has a '{name}' that is not a number.") from None
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise DataError(f"The trace file '{path}' has a '{name}' that is not above 0; every one must be.")
    return values


def read_capacity(path: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``computation`` (milliseconds per sample) and ``communication`` (kbit/s) of each record: [T], [T]."""
    rows = _records(path)
    return _column(path, rows, "computation"), _column(path, rows, "communication")


@dataclass(frozen=True, eq=False)
class Intervals:
    """When recorded devices are active, flat: recording ``owner[j]`` from ``start[j]`` to ``stop[j]``."""

    owner: NDArray[np.int64]
    start: NDArray[np.float64]
    stop: NDArray[np.float64]
    length: NDArray[np.float64]  # [T] seconds after which each recording repeats

    def active(self, now: float) -> NDArray[np.bool_]:
        """Which recordings are active at a moment: [T]."""
        moment = (now % self.length)[self.owner]
        inside = (self.start <= moment) & (moment <= self.stop)
        return np.bincount(self.owner[inside], minlength=len(self.length)) > 0


def read_availability(path: str) -> Intervals:
    """``active`` and ``inactive`` times (one or a list each) and ``finish_time`` of each record."""
    rows = _records(path)
    length = _column(path, rows, "finish_time")
    starts, stops = _times(path, rows, "active"), _times(path, rows, "inactive")
    for i, (begin, end) in enumerate(zip(starts, stops, strict=True)):
        if len(begin) != len(end):
            raise DataError(
                f"Record {i} of the trace file '{path}' has {len(begin)} times in 'active' but {len(end)} in "
                "'inactive'; each interval needs both."
            )
    owner = np.repeat(np.arange(len(rows)), [len(begin) for begin in starts])
    return Intervals(owner, np.concatenate(starts), np.concatenate(stops), length)


def _times(path: str, rows: list[dict[str, Any]], name: str) -> list[NDArray[np.float64]]:
    """A list of times of every record; a CSV cell holds one, or several divided by spaces."""
    try:
        found = [row[name] for row in rows]
        return [np.array(x.split() if isinstance(x, str) else np.atleast_1d(x), np.float64) for x in found]
    except KeyError:
        raise DataError(f"The trace file '{path}' has records without '{name}'; every record needs it.") from None
    except (TypeError, ValueError):
        raise DataError(f"The trace file '{path}' has an '{name}' that is not a list of numbers.") from None
