"""Peers run in processes of their own: what they import, log and leave behind stays there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import torch

import motley
from motley.bench.workloads import Plan, Timing, Workload
from motley.core.errors import TrainingError

LIMIT = 300.0  # seconds a peer may take for all plans


class UnfinishedError(TrainingError):
    """A peer failed, or took too long; ``timings`` has the plans that were carried out, None for the others."""

    def __init__(self, message: str, timings: list[Timing | None]) -> None:
        super().__init__(message)
        self.timings = timings


def run(
    module: str, plans: Sequence[Plan], limit: float = LIMIT, processes: int = 1, env: Sequence[dict[str, str]] = ()
) -> list[Timing]:
    """Lets a module's ``train`` carry out plans in some processes, each with its variables in ``env``.

    A round lasts until the slowest process is done with it; steps add up; the model is that of the first process.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plans.json").write_text(json.dumps([plan.content() for plan in plans]))
        given = list(env) or [{}] * processes
        started = [_start(module, folder, rank, processes, extra) for rank, extra in enumerate(given)]
        failure = _waited(module, started, limit)
        timings = [_carried_out(folder, number, processes) for number in range(len(plans))]
    done = [timing for timing in timings if timing is not None]
    failure = failure or ("" if len(done) == len(plans) else f"{module} left plans undone.")
    if failure:
        raise UnfinishedError(failure, timings)
    return done


def _waited(module: str, started: Sequence[tuple[subprocess.Popen[bytes], IO[bytes]]], limit: float) -> str:
    """What went wrong until all had ended; whoever has not by then is ended."""
    try:
        _wait(module, started, limit)
    except TrainingError as error:
        return str(error)
    finally:
        for process, log in started:
            if process.poll() is None:
                process.kill()
            process.wait()
            log.close()
    return ""


def _carried_out(folder: Path, number: int, processes: int) -> Timing | None:
    files = [folder / f"{rank}-{number}.pt" for rank in range(processes)]
    if not all(file.exists() for file in files):
        return None
    return _together([torch.load(file, weights_only=True) for file in files])


def _start(
    module: str, folder: Path, rank: int, processes: int, extra: dict[str, str]
) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    log = (folder / f"{rank}.log").open("w+b")
    paths = [str(Path(motley.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    threads = str(max(1, torch.get_num_threads() // processes))
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "OMP_NUM_THREADS": threads,
        **extra,
    }
    command = [sys.executable, "-m", __name__, module, str(folder), str(rank)]
    return subprocess.Popen(command, env=variables, stdout=log, stderr=subprocess.STDOUT, cwd=folder), log


def _wait(module: str, started: Sequence[tuple[subprocess.Popen[bytes], IO[bytes]]], limit: float) -> None:
    """Until all are done; the first that fails ends the wait."""
    until = time.monotonic() + limit
    while True:
        codes = [process.poll() for process, _ in started]
        for code, (_, log) in zip(codes, started, strict=True):
            if code:
                raise TrainingError(f"{module} ended with code {code}: {_last_line(log)}")
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > until:
            raise TrainingError(f"{module} was not done after {limit:.0f} seconds.")
        time.sleep(0.05)


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _together(parts: list[dict[str, Any]]) -> Timing:
    seconds = [max(times) for times in zip(*(part["seconds"] for part in parts), strict=True)]
    return Timing(seconds, sum(part["steps"] for part in parts), parts[0]["model"])


def serve(module: str, folder: Path, rank: int) -> None:
    """The other side: carries out the plans of a folder."""
    train: Callable[[Workload], Timing] = import_module(module).train
    plans = [Plan.of(content) for content in json.loads((folder / "plans.json").read_text())]
    for number, plan in enumerate(plans):
        done, half = folder / f"{rank}-{number}.pt", folder / f"{rank}-{number}.half"
        torch.save(train(Workload(plan))._asdict(), half)
        half.rename(done)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
