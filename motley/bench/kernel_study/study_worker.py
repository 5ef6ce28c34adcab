"""A process that computes kernels on request, with the threads and the libraries it was started with.

Requests come as one line of JSON each on stdin, answers go back the same way on the stream that was stdout; whatever
libraries print goes to stderr. It needs no more than NumPy and what the ways it is asked for need, so the same file
serves in Motley's environment and in DaCe's.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from motley.bench.kernel_study.study_case import CASES, Array, Inputs
from motley.bench.kernel_study.study_ways import ON, AbsentError, Ready, kernels_of, make_ready, outputs

Answer = dict[str, Any]
PACKAGES = ("numpy", "torch", "triton", "numba", "dace")


class StudyWorker:
    """Keeps the kernels of one size ready at a time."""

    def __init__(self, environment: str, device: str, folder: Path) -> None:
        self.environment, self.device, self.folder = environment, device, folder
        self.held: tuple[str, str] | None = None
        self.inputs: Inputs = {}
        self.wanted: tuple[Array, ...] = ()
        self.ready: dict[str, Ready] = {}
        if environment == "dace":
            from motley.bench.kernel_study.dace_building import configure

            configure()

    def answer(self, request: dict[str, Any]) -> Answer:
        """One request; a failure is an answer, too."""
        try:
            return {"ok": True, **getattr(self, f"do_{request.pop('do')}")(**request)}
        except Exception as error:  # whatever a library says: it is a row of the table
            told = f"{type(error).__name__}: {error}".strip().splitlines()
            return {"ok": False, "why": " ".join(told[:2])[:300]}

    def do_facts(self) -> Answer:
        """Versions, and the kernels of every way here, or why a way is absent."""
        ways: dict[str, Any] = {}
        for way in ON[self.device][self.environment]:
            try:
                ways[way] = kernels_of(way, self.device)
            except AbsentError as error:
                ways[way] = str(error)
        return {"python": platform.python_version(), "packages": _versions(), "ways": ways}

    def do_bandwidth(self) -> Answer:
        """Bytes that a large copy reads and writes per second."""
        import torch

        from motley.bench.floor import ceilings

        return {"bandwidth": ceilings(torch.device(self.device)).bandwidth}

    def do_check(self, kernel: str, size: str, way: str) -> Answer:
        """Computes once and compares with float64; also how long the first call and a later one take."""
        self._hold(kernel, size)
        begun = time.perf_counter()
        made = make_ready(kernel, way, self.inputs, self.device, self.folder)
        loaded = time.perf_counter()
        found = outputs(made.call())
        made.wait()
        first = time.perf_counter() - loaded
        error = CASES[kernel].error(found, self.wanted)
        seconds = self._timed(made, 1)
        compile_seconds = made.build_seconds or max(0.0, first - seconds)
        self.ready[way] = made
        return {
            "error": error,
            "right": bool(error <= CASES[kernel].tolerance),
            "seconds": min(seconds, self._timed(made, 1)) if seconds < 1.0 else seconds,
            "compile_seconds": compile_seconds,
            "load_seconds": loaded - begun,
        }

    def do_time(self, way: str, calls: int) -> Answer:
        """Seconds per call of some calls in a row."""
        return {"seconds": self._timed(self.ready[way], calls)}

    def do_drop(self) -> Answer:
        """Forgets what it holds."""
        self.held, self.inputs, self.wanted, self.ready = None, {}, (), {}
        gc.collect()
        return {}

    def _hold(self, kernel: str, size: str) -> None:
        if self.held != (kernel, size):
            self.do_drop()
            self.inputs = CASES[kernel].inputs(size)
            self.wanted = CASES[kernel].wanted(self.inputs)
            self.held = kernel, size

    def _timed(self, made: Ready, calls: int) -> float:
        gc.collect()
        gc.disable()
        try:
            made.wait()
            begun = time.perf_counter()
            for _ in range(calls):
                made.call()
            made.wait()
            return (time.perf_counter() - begun) / calls
        finally:
            gc.enable()


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def serve(environment: str, device: str, folder: Path) -> None:
    """Answers until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    worker = StudyWorker(environment, device, folder)
    for line in sys.stdin:
        answers.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
