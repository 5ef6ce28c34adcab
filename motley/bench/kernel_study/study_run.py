"""Carries a study out: units one after the other, in each of them all ways checked first and then timed in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import motley
from motley.bench.kernel_study.dace_environment import default_folder, make_environment
from motley.bench.kernel_study.study_case import CASES
from motley.bench.kernel_study.study_process import StudyProcess
from motley.bench.kernel_study.study_record import Measured, Outcome, StudyRecord, Unit
from motley.bench.kernel_study.study_ways import BASE, ON
from motley.core.errors import InputError, UnknownNameError
from motley.engine.executor import n_cores

Tell = Callable[[str], None]
COMPILED = ("numba", "triton", "motley compiled", "dace range", "dace map", "dace cuda")
TRAPS = ("map_range_map", "index_of_both", "build_type", "fast_math", "views", "blas", "slow_calls")
SAMPLE_LIMIT = 500  # calls of one sample


@dataclass(frozen=True)
class StudyPlan:
    """What is measured, and how thoroughly."""

    kernels: tuple[str, ...]
    sizes: tuple[str, ...] = ("small", "medium")
    threads: tuple[int, ...] = ()  # none: one, and as many as there are cores
    more_threads: bool = True  # some kernels also with twice and four times as many
    device: str = "cpu"
    passes: int = 7
    dace: bool = False
    distributed: bool = True
    target: float = 0.03  # seconds of a sample
    patience: float = 5.0  # seconds of all samples of one way
    limit: float = 120.0  # seconds a way may take for its first call, with compiling
    dace_folder: Path | None = None

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of threads."""
        if self.threads:
            return self.threads
        return (n_cores(),) if self.device == "cuda" else tuple(sorted({1, n_cores()}))

    @property
    def many(self) -> tuple[int, ...]:
        """More threads than cores, for the kernels that are to show it."""
        if not self.more_threads or self.device == "cuda" or self.threads:
            return ()
        return 2 * n_cores(), 4 * n_cores()

    def units(self, threads: int) -> list[Unit]:
        """What is measured with so many threads."""
        names = [name for name in self.kernels if threads in self.counts or CASES[name].more_threads]
        sizes = self.sizes if threads in self.counts else self.sizes[:1]
        return [Unit(name, size, threads, self.device) for name in names for size in sizes]


def make_plan(kernels: Sequence[str], sizes: Sequence[str], device: str, **settings: Any) -> StudyPlan:
    """A plan with names that exist."""
    for name in kernels:
        if name not in CASES:
            raise UnknownNameError("kernel", name, CASES)
    known = {"tiny", "small", "medium"}
    for size in sizes:
        if size not in known:
            raise UnknownNameError("size", size, known)
    if device not in ON:
        raise InputError(f"There is no device '{device}' for kernels; choose cpu or cuda.")
    return StudyPlan(tuple(kernels) or tuple(CASES), tuple(sizes), device=device, **settings)


def check_device(device: str) -> None:
    """Refuses a device that is not here."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("There is no CUDA device here; leave out --device cuda.")


class Workshop:
    """The workers of one number of threads, and which of them computes in which way."""

    def __init__(self, plan: StudyPlan, threads: int, dace_python: Path | None) -> None:
        self.plan, self.threads = plan, threads
        builds = (plan.dace_folder or default_folder()) / "programs"
        self.workers = {"motley": StudyProcess(sys.executable, "motley", plan.device, threads, builds)}
        if dace_python is not None:
            builds.mkdir(parents=True, exist_ok=True)
            self.workers["dace"] = StudyProcess(str(dace_python), "dace", plan.device, threads, builds)
        self.facts: dict[str, Any] = {}
        self.bandwidth: float | None = None

    def __enter__(self) -> Workshop:
        self._stack = ExitStack()
        for worker in self.workers.values():
            self._stack.enter_context(worker)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def get_facts(self) -> dict[str, Any]:
        """Versions and ways of each environment."""
        for name, worker in self.workers.items():
            self.facts[name] = worker.ask("facts", self.plan.limit)
            if not self.facts[name]["ok"]:
                raise InputError(f"The worker for {name} does not start: {self.facts[name]['why']}.")
        if self.bandwidth is None:
            self.bandwidth = self.workers["motley"].ask("bandwidth", self.plan.limit).get("bandwidth")
        return self.facts

    def ways(self, kernel: str) -> Iterator[tuple[str, StudyProcess | None, str]]:
        """Each way with its worker, or None and why there is none; without ways that a kernel is not written for."""
        for environment, ways in ON[self.plan.device].items():
            for way in ways:
                if environment not in self.facts:
                    yield way, None, "not asked for (--with dace)"
                    continue
                kernels = self.facts[environment]["ways"][way]
                if isinstance(kernels, str):
                    yield way, None, kernels
                elif kernel in kernels:
                    yield way, self.workers[environment], ""


def busy_share(seconds: float = 0.1) -> float:
    """How much of the cores others use while this process sleeps; 0 where the system does not tell."""

    def read() -> tuple[float, float]:
        numbers = [float(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]

    try:
        total, idle = read()
        time.sleep(seconds)
        later, idle_later = read()
    except OSError:
        return 0.0
    return max(0.0, 1.0 - (idle_later - idle) / max(1.0, later - total))


def measure(unit: Unit, shop: Workshop) -> Measured:
    """All ways of one unit: checked against float64, then timed in turn."""
    plan, busy = shop.plan, busy_share()
    outcomes: list[Outcome] = []
    timed: list[tuple[Outcome, StudyProcess, int]] = []
    for way, worker, why in shop.ways(unit.kernel):
        if worker is None:
            outcomes.append(Outcome(way, "absent", why))
            continue
        answer = worker.ask("check", plan.limit, kernel=unit.kernel, size=unit.size, way=way)
        outcome = _checked(way, answer)
        outcomes.append(outcome)
        if outcome.status == "right":
            outcome.calls = max(1, min(SAMPLE_LIMIT, int(plan.target / max(1e-7, answer["seconds"]))))
            turns = int(plan.patience / (outcome.calls * max(1e-7, answer["seconds"])))
            timed.append((outcome, worker, max(3, min(plan.passes, turns))))
    for number in range(plan.passes):
        start = number % max(1, len(timed))
        for outcome, worker, turns in timed[start:] + timed[:start]:
            if number < turns and outcome.status == "right":
                _sample(outcome, worker, plan.limit)
    for worker in shop.workers.values():
        worker.ask("drop", plan.limit)
    return Measured(unit, outcomes, round(busy, 3), plan.passes)


def _checked(way: str, answer: dict[str, Any]) -> Outcome:
    if not answer["ok"]:
        return Outcome(way, "failed", answer["why"])
    seconds = round(answer["compile_seconds"], 3) if way in COMPILED else None
    if not answer["right"]:
        told = f"differs from float64 by {answer['error']:.2g}; not timed"
        return Outcome(way, "wrong", told, _finite(answer["error"]), seconds)
    return Outcome(way, "right", "", answer["error"], seconds)


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def _sample(outcome: Outcome, worker: StudyProcess, limit: float) -> None:
    time.sleep(0.005)  # threads of the one before come to rest
    answer = worker.ask("time", limit, way=outcome.way, calls=outcome.calls)
    if answer["ok"]:
        outcome.samples.append(answer["seconds"])
    else:
        outcome.status, outcome.note = "failed", answer["why"]


def carry_out(plan: StudyPlan, record: StudyRecord, tell: Tell) -> None:
    """Measures what the record does not have yet; what claims are judged by comes first."""
    python = None
    if plan.dace:
        python = make_environment(plan.dace_folder or default_folder(), tell)
    _with_threads(plan, plan.counts[-1], python, record, tell)
    if plan.device == "cpu":
        _beside_the_kernels(plan, record, python, tell)
    for threads in (*plan.many, *plan.counts[:-1]):
        _with_threads(plan, threads, python, record, tell)


def _beside_the_kernels(plan: StudyPlan, record: StudyRecord, python: Path | None, tell: Tell) -> None:
    """What is shown on a CPU only: DaCe's traps, and two processes."""
    if python is not None:
        _show_traps(plan, python, record, tell)
    if plan.distributed and "two_processes" not in record.extras:
        from motley.bench.kernel_study.two_processes import trend

        tell("two processes on the loopback ...")
        record.add_extra("two_processes", trend("tiny" if plan.sizes == ("tiny",) else "medium", plan.passes))


def _with_threads(plan: StudyPlan, threads: int, python: Path | None, record: StudyRecord, tell: Tell) -> None:
    units = plan.units(threads)
    if not units:
        return
    with Workshop(plan, threads, python) as shop:
        name = f"facts/{plan.device}/{threads}"
        shop.bandwidth = record.extras.get(name, {}).get("bandwidth")
        record.add_extra(name, {"facts": shop.get_facts(), "bandwidth": shop.bandwidth})
        for number, unit in enumerate(units, 1):
            ways = [way for way, _, _ in shop.ways(unit.kernel)]
            if record.has(unit, ways, plan.passes):
                continue
            measured = measure(unit, shop)
            record.add(measured)
            tell(f"[{number}/{len(units)}, {threads} thread{'s' if threads > 1 else ''}] {brief(measured)}")


def brief(measured: Measured) -> str:
    """One line for people: the quickest way, and what went wrong."""
    import statistics

    base = measured.find(BASE)
    right = [one for one in measured.outcomes if one.samples]
    told = f"{measured.unit.kernel} {measured.unit.size}:"
    if right:
        best = min(right, key=lambda one: statistics.median(one.samples))
        told += f" {best.way} {1e3 * statistics.median(best.samples):.3g} ms"
        if base is not None and base.samples:
            told += f", {statistics.median(base.samples) / statistics.median(best.samples):.3g} times NumPy"
    bad = [f"{one.way} {one.status}" for one in measured.outcomes if one.status in ("wrong", "failed")]
    return told + (f"; {', '.join(bad)}" if bad else "")


def _show_traps(plan: StudyPlan, python: Path, record: StudyRecord, tell: Tell) -> None:
    folder = (plan.dace_folder or default_folder()) / "programs"
    rows: list[dict[str, Any]] = list(record.extras.get("traps", []))
    for name in TRAPS:
        if any(row["trap"] == name for row in rows):
            continue
        tell(f"trap: {name} ...")
        rows.append(_trap(name, python, folder, plan.limit))
        record.add_extra("traps", rows)


def _trap(name: str, python: Path, folder: Path, limit: float) -> dict[str, Any]:
    """One trap in a process of its own, with one thread."""
    import tempfile

    variables = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                 "PYTHONPATH": str(Path(motley.__file__).parent.parent), "PYTHONWARNINGS": "ignore"}  # fmt: skip
    command = [str(python), "-m", "motley.bench.kernel_study.dace_traps", name, str(folder)]
    with tempfile.TemporaryDirectory(prefix="motley-trap-") as scratch:
        try:
            done = subprocess.run(
                command, env=variables, cwd=scratch, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            return {"trap": name, "shown": None, "seen": f"not done after {limit:.0f} s"}
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"trap": name, "shown": None, "seen": f"failed: {lines[-1][:200] if lines else done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
