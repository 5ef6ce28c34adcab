"""Known traps of DaCe, each shown by itself and beside what avoids it; runs in DaCe's own environment.

    python -m motley.bench.kernel_study.dace_traps views FOLDER

prints a row as one line of JSON. Each trap has a process of its own: one of them changes how all of it computes.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from motley.bench.kernel_study import array_cases  # noqa: F401  (registers cases)
from motley.bench.kernel_study.dace_building import FLAGS, bind, build, configure
from motley.bench.kernel_study.study_case import CASES

Row = dict[str, Any]
TRAPS: dict[str, tuple[str, str, Callable[[Path], Row]]] = {}  # name -> what happens, what avoids it, what shows it
DEFAULT_FLAGS = "-std=c++14 -fPIC -O3 -march=native -ffast-math"
PASSES = 7


def trap(what: str, avoided: str) -> Callable[[Callable[[Path], Row]], Callable[[Path], Row]]:
    def add(shows: Callable[[Path], Row]) -> Callable[[Path], Row]:
        TRAPS[shows.__name__] = what, avoided, shows
        return shows

    return add


def _programs() -> Any:
    return importlib.import_module("motley.bench.kernel_study.dace_trap_kernels")


def medians(calls: dict[str, Callable[[], Any]], passes: int = PASSES) -> dict[str, float]:
    """Median seconds of calls that take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(passes):
        for name, call in calls.items():
            begun = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begun)
    return {name: statistics.median(found) for name, found in seconds.items()}


@trap(
    "a map in a range in a map computes wrong results without a word",
    "inside a map a range holds whole-array expressions or scalars, and every result is checked before it is timed",
)
def map_range_map(folder: Path) -> Row:
    case = CASES["syrk"]
    inputs = case.inputs("small")
    C = inputs["C"].copy()
    _programs().map_range_map.compile()(**{**inputs, "C": C}, N=len(C), M=inputs["A"].shape[1])
    error = case.error([C], case.wanted(inputs))
    compiled, _ = build("syrk_map", folder)
    right = case.error([*bind(compiled, "syrk", inputs)()], case.wanted(inputs))
    return {"shown": error > 1e-3, "seen": f"error {error:.2g} of the largest number; with whole rows {right:.2g}"}


@trap(
    "an index that adds a map's and a range's variable loses the map's (seen here; not among the paper's)",
    "windows are copied by a map of their own first",
)
def index_of_both(folder: Path) -> Row:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(40), rng.standard_normal(5)
    out = np.zeros(36)
    _programs().index_of_both.compile()(x=x, w=w, out=out, H=40, K=5)
    wanted = np.correlate(x, w, "valid")
    error = float(np.abs(out - wanted).max() / np.abs(wanted).max())
    return {"shown": error > 1e-3, "seen": f"error {error:.2g} of the largest number"}


@trap("the default build type RelWithDebInfo undoes -O3 with -O2", "build type Release")
def build_type(folder: Path) -> Row:
    inputs = CASES["heat_3d"].inputs("medium")
    configure(build_type="RelWithDebInfo")
    slow = bind(build("heat_3d_map", folder / "relwithdebinfo")[0], "heat_3d", inputs)
    configure()
    quick = bind(build("heat_3d_map", folder)[0], "heat_3d", inputs)
    found = medians({"default": slow, "release": quick})
    ratio = found["default"] / found["release"]
    cache = next((folder / "relwithdebinfo").glob("*/build/CMakeCache.txt")).read_text()
    flags = next(
        line.split("=", 1)[1] for line in cache.splitlines() if line.startswith("CMAKE_CXX_FLAGS_RELWITHDEBINFO")
    )
    took = f"heat_3d takes {1e3 * found['default']:.3g} ms, as a release {1e3 * found['release']:.3g}"
    seen = f"its flags end in {flags}; {took}"
    return {"shown": "-O2" in flags, "seen": seen, "ratio": ratio}


@trap(
    "the default -ffast-math flushes denormal numbers for the whole process once a program is loaded",
    "-fno-math-errno -fno-trapping-math in its place",
)
def fast_math(folder: Path) -> Row:
    small, one = np.array([1e-310]), np.array([1.0])
    x, y = np.ones(8), np.zeros(8)
    configure(flags=FLAGS)
    _programs().twice.to_sdfg().compile()(x=x, y=y, N=8)
    kept = f"{(small * one)[0]:.3g}"  # as text: afterwards the process would print it as 0, too
    configure(flags=DEFAULT_FLAGS)
    graph = _programs().twice.to_sdfg()
    graph.name = "twice_fast"
    graph.compile()(x=x, y=y, N=8)
    flushed = f"{(small * one)[0]:.3g}"
    seen = f"NumPy's 1e-310 * 1 is {kept} after a program without it, {flushed} after one with it"
    return {"shown": kept == "1e-310" and flushed == "0", "seen": seen}


@trap("views are refused as arguments", "arrays of their own (numpy.copy), as all inputs here")
def views(folder: Path) -> Row:
    compiled = _programs().twice.compile()
    try:
        compiled(x=np.ones(16)[:8], y=np.zeros(8), N=8)
    except TypeError as error:
        return {"shown": True, "seen": str(error).split(" to DaCe")[0]}
    return {"shown": False, "seen": "half of an array was taken"}


@trap("without a BLAS library `@` is three naive loops", "OpenBLAS from the wheel scipy-openblas32")
def blas(folder: Path) -> Row:
    inputs = CASES["gemm"].inputs("medium")
    configure(blas=False)
    naive = bind(build("gemm_range", folder / "naive")[0], "gemm", inputs)
    with_blas = configure()
    calls = {"naive": naive, "numpy": lambda: 1.5 * (inputs["A"] @ inputs["B"]) + 0.8 * inputs["C"]}
    if with_blas:
        calls["openblas"] = bind(build("gemm_range", folder)[0], "gemm", inputs)
    found = medians(calls, 3)
    told = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in found.items())
    return {"shown": found["naive"] > 3 * found["numpy"], "seen": told, "ratio": found["naive"] / found["numpy"]}


@trap("a call of the decorated function checks everything anew", "compile once, then fast_call")
def slow_calls(folder: Path) -> Row:
    program = _programs().twice
    x, y = np.ones(8), np.zeros(8)
    compiled = program.compile()
    compiled(x=x, y=y, N=8)
    program(x, y)
    arguments = compiled._construct_args({"x": x, "y": y, "N": 8})
    found = medians(
        {
            "decorated": lambda: program(x, y),
            "compiled": lambda: compiled(x=x, y=y, N=8),
            "fast_call": lambda: compiled.fast_call(*arguments),
        },
        50,
    )
    told = ", ".join(f"{name} {1e6 * seconds:.3g} us" for name, seconds in found.items())
    return {"shown": found["decorated"] > 20 * found["fast_call"], "seen": told,
            "ratio": found["decorated"] / found["fast_call"]}  # fmt: skip


def show(name: str, folder: Path) -> Row:
    """One trap as a row."""
    what, avoided, shows = TRAPS[name]
    configure()
    return {"trap": name, "what": what, "avoided_by": avoided, **shows(folder)}


if __name__ == "__main__":
    _answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _answers.write(json.dumps(show(sys.argv[1], Path(sys.argv[2]))) + "\n")
    _answers.flush()
