"""What operators see of a server: a file that it writes now and then, and the same as numbers for Prometheus."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from motley.core.errors import InputError, StateError
from motley.deploy.broker import Broker
from motley.deploy.disks import Disk
from motley.deploy.serving import Serving

FILE = "status.json"
EVERY = 1.0  # seconds
STALE = 5.0  # seconds after which a status that was not renewed tells of a server that is gone

Facts = dict[str, Any]


class StatusPage:
    """Collects facts and writes them down."""

    def __init__(self, disk: Disk, serving: Serving, broker: Broker | None, about: Facts) -> None:
        """``about`` is what never changes: name, method, rounds."""
        self.disk, self.serving, self.broker, self.about = disk, serving, broker, about
        self.trouble: Callable[[], str] = lambda: ""

    async def watch(self) -> None:
        while True:
            await self.write()
            await asyncio.sleep(EVERY)

    async def write(self) -> None:
        told = {} if self.broker is None else await asyncio.to_thread(self.broker.facts)
        with suppress(OSError):  # a full disk is told of by the log
            self.disk.write(FILE, json.dumps(self.facts(told)).encode())

    def facts(self, broker: Facts) -> Facts:
        serving = self.serving
        core, ended = serving.book.core, serving.result is not None
        waits = serving.book.wait_for
        missing = waits - int(serving.book.attendance.here.sum())
        return {
            **self.about,
            "time": time.time(),
            "phase": "done" if ended else "running" if core is not None else "waiting",
            "missing": max(0, missing) if core is None else 0,
            "round": 0 if core is None else core.round,
            "log": serving.book.log.seq,
            "starts": serving.outgoing.epoch,
            "seats": [self._seat(number) for number in range(serving.roster.n_seats)],
            "counts": dict(serving.tidings.counts),
            "refusals": [{"seat": seat, "why": why} for seat, why in serving.tidings.refusals],
            "trouble": self.trouble(),
            "broker": {
                "connections": broker.get("connections"),
                "slow": broker.get("slow_consumers"),
                "memory": broker.get("mem"),
                "uptime": broker.get("uptime"),
            },
        }

    def _seat(self, number: int) -> Facts:
        serving = self.serving
        seat, word = serving.roster.seats.get(number), serving.tidings.words.get(number)
        heard = serving.tidings.seen.get(number)
        tasks = [task for task in serving.open.values() if task.client == number]
        return {
            "seat": number,
            "name": "" if seat is None else seat.name,
            "state": self._state(number),
            "task": f"{tasks[0].round}/{tasks[0].id[:4]}" if tasks else "",
            "heard": None if heard is None else round(asyncio.get_running_loop().time() - heard, 1),
            "samples": None if seat is None else seat.n,
            "says": "" if word is None else word.says,
        }

    def _state(self, number: int) -> str:
        serving = self.serving
        if number in serving.roster.evicted:
            return "evicted"
        if number not in serving.roster.seats:
            return "free"
        if not serving.book.attendance.here[number]:
            return "absent"
        word = serving.tidings.words.get(number)
        return "here" if word is None else word.phase


def read_status(disk: Disk) -> Facts:
    """The last status that a server wrote; `phase` is ``stopped`` where it writes no more and has not ended."""
    found = disk.read(FILE)
    if found is None:
        raise StateError("This run has no status yet; start its server with 'motley resume' on its folder.")
    facts: Facts = json.loads(found)
    facts["age"] = max(0.0, time.time() - facts["time"])
    if facts["age"] > STALE and facts["phase"] != "done":
        facts["phase"] = "stopped"
    return facts


# ------------------------------------------------------------------ Prometheus
def metrics(facts: Facts) -> str:
    """The facts in Prometheus's text format."""
    lines = [
        _metric("round", "gauge", "Rounds begun.", [("", facts["round"])]),
        _metric("log_entries", "counter", "Entries of the log.", [("", facts["log"])]),
        _metric("server_starts", "counter", "Starts of the server.", [("", facts["starts"])]),
        _metric("seats", "gauge", "Seats by state.", _by_state(facts)),
        _metric("events", "counter", "What was counted.", [(f'what="{k}"', n) for k, n in facts["counts"].items()]),
    ]
    if facts["broker"]["memory"] is not None:
        lines.append(_metric("broker_bytes", "gauge", "Memory of the broker.", [("", facts["broker"]["memory"])]))
        lines.append(_metric("broker_slow", "counter", "Slow receivers.", [("", facts["broker"]["slow"])]))
    return "".join(lines)


def _by_state(facts: Facts) -> list[tuple[str, float]]:
    states = [seat["state"] for seat in facts["seats"]]
    return [(f'state="{state}"', states.count(state)) for state in sorted(set(states))]


def _metric(name: str, kind: str, says: str, values: list[tuple[str, float]]) -> str:
    head = f"# HELP motley_{name} {says}\n# TYPE motley_{name} {kind}\n"
    return head + "".join(f"motley_{name}{{{labels}}} {value}\n" if labels else f"motley_{name} {value}\n"
                          for labels, value in values)  # fmt: skip


async def serve_metrics(port: int, disk: Disk) -> asyncio.Server:
    """Answers ``GET /metrics`` on this machine."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(5.0):
                asked = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
            found = asked.startswith(b"GET /metrics ") and disk.read(FILE) is not None
            text = metrics(read_status(disk)) if found else "Only GET /metrics is answered here.\n"
            head = f"HTTP/1.1 {'200 OK' if found else '404 Not Found'}\r\nContent-Type: text/plain; version=0.0.4\r\n"
            writer.write(f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode())
            await writer.drain()
        writer.close()

    try:
        return await asyncio.start_server(answer, "127.0.0.1", port, limit=1 << 14)
    except OSError as error:
        raise InputError(f"Port {port} for metrics cannot be used ({error.strerror}); choose another.") from None
