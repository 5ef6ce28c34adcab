"""What those who run a federation see and do: status, metrics, replay, orders."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from motley.commands.cli import main
from motley.commands.operators import status_text
from motley.core.errors import InputError, StateError
from motley.deploy.broker import free_port
from motley.deploy.disks import FolderDisk
from motley.deploy.event_log import EventLog
from motley.deploy.status_page import metrics, read_status, serve_metrics
from tests.deploy.field import Field, tiny

FACTS: dict[str, Any] = {
    "name": "digits",
    "method": "scaffold",
    "rounds": 50,
    "pid": 1,
    "time": 0.0,
    "age": 0.0,
    "phase": "running",
    "missing": 0,
    "round": 17,
    "log": 318,
    "starts": 2,
    "seats": [
        {"seat": 0, "name": "hospital-a", "state": "idle", "task": "", "heard": 1.2, "samples": 8210, "says": ""},
        {"seat": 1, "name": "b", "state": "training", "task": "17/6be1", "heard": 2.0, "samples": 4377, "says": "slow"},
        {"seat": 2, "name": "", "state": "free", "task": "", "heard": None, "samples": None, "says": ""},
    ],
    "counts": {"kept": 48, "refused": 1},
    "refusals": [{"seat": 1, "why": "it holds numbers that are not finite (NaN or infinite)"}],
    "trouble": "",
    "broker": {"connections": 4, "slow": 0, "memory": 61_000_000, "uptime": "3h"},
}


def test_the_status_as_a_person_reads_it() -> None:
    assert status_text(FACTS, "runs/a").splitlines() == [
        "runs/a · digits/scaffold · round 17 of 50 · log 318",
        "seat  name            state     task      heard    samples  note",
        "   0  hospital-a      idle      -         1 s        8 210",
        "   1  b               training  17/6be1   2 s        4 377  slow",
        "   2  -               free      -         -",
        "broker up 3h · 4 connections · 0 slow · 61 MB",
        "seat 1: refused, it holds numbers that are not finite (NaN or infinite)",
    ]
    assert "waiting for 2 more seats" in status_text({**FACTS, "phase": "waiting", "missing": 2}, "a")
    assert "go on with 'motley resume'" in status_text({**FACTS, "phase": "stopped", "age": 9.0}, "a")


def test_the_status_as_prometheus_reads_it() -> None:
    lines = metrics(FACTS).splitlines()
    assert "motley_round 17" in lines
    assert 'motley_seats{state="training"} 1' in lines
    assert 'motley_events{what="refused"} 1' in lines
    assert "motley_broker_bytes 61000000" in lines
    assert sum(line.startswith("# TYPE") for line in lines) == len({line.split()[2] for line in lines if "# T" in line})


def test_a_server_that_writes_no_more_has_stopped(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path)
    with pytest.raises(StateError, match="motley resume"):
        read_status(disk)
    disk.write("status.json", json.dumps({**FACTS, "time": time.time()}).encode())
    assert read_status(disk)["phase"] == "running"
    disk.write("status.json", json.dumps({**FACTS, "time": time.time() - 60}).encode())
    assert read_status(disk)["phase"] == "stopped"


def test_metrics_are_served_and_nothing_else(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path)
    disk.write("status.json", json.dumps({**FACTS, "time": time.time()}).encode())
    port = free_port()

    async def ask(text: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(text)
        found = await reader.read()
        writer.close()
        await writer.wait_closed()
        return found

    async def look() -> list[bytes]:
        server = await serve_metrics(port, disk)
        with pytest.raises(InputError, match="choose another"):
            await serve_metrics(port, disk)
        found = [await ask(b"GET /metrics HTTP/1.1\r\n\r\n"), await ask(b"GET /key HTTP/1.1\r\n\r\n")]
        server.close()
        await server.wait_closed()
        return found

    good, bad = asyncio.run(look())
    assert good.startswith(b"HTTP/1.1 200 OK")
    assert b"motley_round 17\n" in good
    assert bad.startswith(b"HTTP/1.1 404")


def motley(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["motley", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_a_run_is_replayed_and_a_changed_log_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    field = Field(tiny(protocol="late", deadline=5.0), tmp_path, audit=True)
    field.run()
    assert motley(monkeypatch, "status", str(field.folder)) == 0
    assert "round 3 of 3 · done" in capsys.readouterr().out
    assert motley(monkeypatch, "replay", str(field.folder), "--json") == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["equal"] is True
    assert motley(monkeypatch, "replay", str(field.folder)) == 0
    assert "the same model" in capsys.readouterr().out
    disk = FolderDisk(field.folder / "deploy")
    first = next(entry for entry in EventLog(disk).entries() if entry.kind == "arrive")
    others = [name for name in disk.names("spool/") if name != f"spool/{first.what[0]}"]
    disk.write(f"spool/{first.what[0]}", disk.read(others[-1]) or b"")
    assert motley(monkeypatch, "replay", str(field.folder)) != 0
    assert "an update was changed" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("status",), ("replay",), ("evict",), ("invite",)])
def test_a_folder_that_is_no_deployed_run_is_refused(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["0"] if words == ("evict",) else []
    assert motley(monkeypatch, *words, str(tmp_path), *more) == 2
    assert "is not the folder of a deployed run" in capsys.readouterr().err


def test_a_missing_extra_is_said_with_what_to_install() -> None:
    without = "import sys; sys.modules['msgspec'] = None; sys.argv = ['motley', 'status', '.']"
    code = f"{without}; from motley.commands.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'motley-fl[deploy]'" in done.stderr
