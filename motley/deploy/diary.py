"""What happened to a run, with the time of day, for auditors: one JSON object per line in ``audit.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

from motley.deploy.disks import Disk
from motley.deploy.event_log import Entry

FILE = "audit.jsonl"
TOLD = ("epoch", "seat", "evict", "here", "gone", "start", "phase", "arrive", "lose", "forgot", "end")


class Diary:
    """Writes down what was logged. The log decides; this is its account, and a crash may cost its last lines."""

    def __init__(self, disk: Disk, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.disk, self.now = disk, now

    def note(self, entry: Entry) -> None:
        if entry.kind not in TOLD:
            return
        what = entry.what
        if entry.kind == "seat":
            seat = what[1]
            what = (what[0], {name: seat[name] for name in ("name", "public_key", "n", "invitation")})
        told = {"time": self.now().isoformat(timespec="milliseconds"), "entry": entry.seq, "t": entry.t}
        line = json.dumps({**told, "kind": entry.kind, "what": list(what)})
        self.disk.append(FILE, line.encode() + b"\n")
