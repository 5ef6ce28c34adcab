"""Several runs at a time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from motley.runtime.parallel_runs import in_parallel


def squared(n: int) -> int:
    if n == 3:
        raise ValueError("three")
    return n * n


def lingers(path: Path) -> None:
    path.write_text(str(os.getpid()))
    time.sleep(60)


def test_all_are_done_and_a_failure_is_told_with_its_task() -> None:
    begun: list[int] = []
    found = dict(in_parallel(range(5), squared, 2, begun=begun.append))
    assert begun == [0, 1, 2, 3, 4]
    assert {n: future.result() for n, future in found.items() if n != 3} == {0: 0, 1: 1, 2: 4, 4: 16}
    with pytest.raises(ValueError, match="three"):
        found[3].result()


def test_none_is_started_after_the_end() -> None:
    assert list(in_parallel(range(5), squared, 2, until=time.time() - 1)) == []


def test_whoever_stops_listening_ends_those_under_way(tmp_path: Path) -> None:
    running = tmp_path / "pid"

    def interrupted(_: object) -> None:
        deadline = time.time() + 30
        while not (running.exists() and running.read_text()):
            assert time.time() < deadline
            time.sleep(0.05)
        raise KeyboardInterrupt

    tasks = iter([running, tmp_path / "other"])
    with pytest.raises(KeyboardInterrupt):
        list(in_parallel(tasks, lingers, 2, begun=lambda path: interrupted(path) if path != running else None))
    pid = int(running.read_text())
    deadline = time.time() + 10
    while Path(f"/proc/{pid}").exists() and "zombie" not in Path(f"/proc/{pid}/status").read_text():
        assert time.time() < deadline, "the run goes on"
        time.sleep(0.05)
