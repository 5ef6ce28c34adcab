"""The distributed claim on two processes of one machine: does a kernel take half the time when two share its rows?

Processes have one thread each and exchange vectors through Gloo on the loopback. The first also computes the whole
alone, in turn with both together, so that a machine that changes its speed does so for both. Two processes share one
memory, so this shows a trend, not the paper's numbers from up to eight nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor, distributed

import motley
from motley.bench.kernel_study.study_record import median_and_quartiles

Row = dict[str, Any]
WORLD = 2
TARGET = 0.03  # seconds of a sample
SIZES = {"tiny": (24, 6, 8), "medium": (3000, 64, 192)}  # of matrices for vectors; R = Q and P of doitgen
NOTE = "a trend on two processes of one machine, which share its memory; the paper has up to eight nodes"


class Exchange:
    """What processes tell each other; alone, nothing has to be told. Counts the seconds it takes."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.seconds = 0.0

    def sum(self, value: Tensor) -> Tensor:
        """Every process's vector, added up."""
        if self.world > 1:
            begun = time.perf_counter()
            distributed.all_reduce(value)
            self.seconds += time.perf_counter() - begun
        return value

    def join(self, value: Tensor) -> Tensor:
        """Every process's rows, one after the other."""
        if self.world == 1:
            return value
        begun = time.perf_counter()
        parts = [torch.empty_like(value) for _ in range(self.world)]
        distributed.all_gather(parts, value)
        self.seconds += time.perf_counter() - begun
        return torch.cat(parts)


Kernel = Callable[[Mapping[str, Tensor], Exchange], tuple[Tensor, ...]]


def doitgen(given: Mapping[str, Tensor], to: Exchange) -> tuple[Tensor, ...]:
    """Nothing has to be told: everybody has its rows of the result."""
    return (given["A"] @ given["all_C"],)


def gemm(given: Mapping[str, Tensor], to: Exchange) -> tuple[Tensor, ...]:
    return (given["A"] @ to.join(given["B"]),)


def atax(given: Mapping[str, Tensor], to: Exchange) -> tuple[Tensor, ...]:
    return (to.sum((given["A"] @ given["all_x"]) @ given["A"]),)


def bicg(given: Mapping[str, Tensor], to: Exchange) -> tuple[Tensor, ...]:
    return to.sum(given["r"] @ given["A"]), to.join(given["A"] @ given["all_p"])


def mvt(given: Mapping[str, Tensor], to: Exchange) -> tuple[Tensor, ...]:
    return to.join(given["A"] @ given["all_y"]), to.sum(given["z"] @ given["A"])


def gesummv(given: Mapping[str, Tensor], to: Exchange) -> tuple[Tensor, ...]:
    return (to.join(1.5 * (given["A"] @ given["all_x"]) + 0.8 * (given["B"] @ given["all_x"])),)


KERNELS: dict[str, Kernel] = {one.__name__: one for one in (doitgen, gemm, atax, bicg, mvt, gesummv)}
LIGHT = ("doitgen",)
VECTOR = ("atax", "bicg", "mvt", "gesummv")


def make_inputs(kernel: str, size: str) -> dict[str, Tensor]:
    """Whole inputs; those named all_... are everybody's, of others a process has its rows."""
    n, r, p = SIZES[size]
    draw = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    if kernel == "doitgen":
        return {"A": normal(r * r, p), "all_C": normal(p, p)}
    if kernel == "gemm":
        return {"A": normal(n // 6, n // 6), "B": normal(n // 6, n // 6)}
    names = {"atax": ("all_x",), "bicg": ("r", "all_p"), "mvt": ("all_y", "z"), "gesummv": ("all_x",)}[kernel]
    matrices = ("A", "B") if kernel == "gesummv" else ("A",)
    return {**{name: normal(n, n) for name in matrices}, **{name: normal(n) for name in names}}


def rows_of(whole: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """The part of the inputs that a process holds."""
    return {
        name: value if name.startswith("all_") else value.chunk(WORLD)[rank].clone() for name, value in whole.items()
    }


class Sample(NamedTuple):
    """Seconds of one pass."""

    alone: float
    together: float
    telling: float  # of these, in exchanges


def measure(kernel: str, size: str, passes: int, rank: int) -> Row:
    """One kernel by this process of two; all processes end up with the same row but for small differences."""
    whole = make_inputs(kernel, size)
    mine = rows_of(whole, rank)
    run, quiet, both = KERNELS[kernel], Exchange(1), Exchange(WORLD)
    wanted, found = run(whole, quiet), run(mine, both)
    if kernel in (*LIGHT, "gemm"):
        wanted = tuple(value.chunk(WORLD)[rank] for value in wanted)
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, wanted, strict=True))
    longest = _agreed(max(_timed(lambda: run(mine, both), 1), _timed(lambda: run(whole, quiet), 1)))
    calls = max(1, min(100, int(TARGET / longest)))
    samples = []
    for _ in range(passes):
        distributed.barrier()
        alone = _timed(lambda: run(whole, quiet), calls) if rank == 0 else 0.0
        distributed.barrier()
        both.seconds = 0.0
        together = _agreed(_timed(lambda: run(mine, both), calls))
        samples.append(Sample(alone, together, both.seconds / calls))
    return {"kernel": kernel, "size": size, "error": error, "right": error < 1e-10, "samples": samples}


def _agreed(value: float) -> float:
    """The largest number of all processes."""
    shared = torch.tensor([value], dtype=torch.float64)
    distributed.all_reduce(shared, op=distributed.ReduceOp.MAX)
    return float(shared)


def _timed(call: Callable[[], object], calls: int) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begun) / calls


def take_part(rank: int, folder: Path, size: str, passes: int) -> None:
    """What each process does."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    try:
        rows = [measure(kernel, size, passes, rank) for kernel in KERNELS]
    finally:
        distributed.destroy_process_group()
    if rank == 0:
        (folder / "rows.json").write_text(json.dumps(rows))


def trend(size: str = "medium", passes: int = 7, limit: float = 300.0) -> list[Row]:
    """Rows of all kernels: milliseconds alone and together, and the efficiency of the two processes."""
    with tempfile.TemporaryDirectory(prefix="motley-two-") as name:
        folder = Path(name)
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                     "PYTHONPATH": str(Path(motley.__file__).parent.parent)}  # fmt: skip
        with (folder / "log").open("w+b") as log:
            command = [sys.executable, "-W", "ignore", "-m", __name__]
            started = [_start([*command, str(rank), name, size, str(passes)], variables, log) for rank in range(WORLD)]
            why = _wait(started, limit)
            log.seek(0)
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        if why or not (folder / "rows.json").is_file():
            failed = {"size": size, "right": False, "note": f"failed: {why or lines[-1:]}", "samples": []}
            return [{"kernel": kernel, **failed} for kernel in KERNELS]
        return [summarised(row) for row in json.loads((folder / "rows.json").read_text())]


def _start(command: list[str], variables: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """One of the processes, in the folder where they meet."""
    return subprocess.Popen(
        command, env=variables, stdout=log, stderr=log, cwd=Path(log.name).parent, start_new_session=True
    )


def _wait(started: list[subprocess.Popen[bytes]], limit: float) -> str:
    """Until both have ended; what went wrong, if something did."""
    until = time.monotonic() + limit
    try:
        for process in started:
            process.wait(max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"not done after {limit:.0f} s"
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()
    codes = [process.returncode for process in started]
    return f"processes ended with {codes}" if any(codes) else ""


def summarised(row: Row) -> Row:
    """Medians over the passes; efficiency is half the ratio of alone to together."""
    samples = [Sample(*sample) for sample in row["samples"]]
    efficiency = median_and_quartiles([one.alone / (WORLD * one.together) for one in samples])
    return {
        **row,
        "ms_alone": 1e3 * median_and_quartiles([one.alone for one in samples])[0],
        "ms_together": 1e3 * median_and_quartiles([one.together for one in samples])[0],
        "telling": median_and_quartiles([one.telling / one.together for one in samples])[0],
        "efficiency": efficiency[0],
        "low": efficiency[1],
        "high": efficiency[2],
        "note": NOTE,
    }


if __name__ == "__main__":
    take_part(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
