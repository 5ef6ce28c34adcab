"""How a DaCe program becomes something that can be timed; runs in DaCe's own environment.

What is set here avoids what `dace_traps` shows: a release build, no `-ffast-math`, a BLAS library, arrays of its own
instead of views, and calls without the checks of the decorated function.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from motley.bench.kernel_study.study_case import Array, Inputs

FLAGS = "-std=c++14 -fPIC -O3 -march=native -fno-math-errno -fno-trapping-math -Wno-unused-parameter -Wno-unused-label"
BLAS_NAMES = (
    *(f"cblas_{kind}{name}" for kind in "sd" for name in ("gemm", "gemv", "ger", "dot", "axpy")),
    *(f"LAPACKE_{kind}potrf" for kind in "sd"),
)
OUTPUTS = {
    "syrk": ("C",),
    "bicg": ("s", "q"),
    "durbin": ("y",),
    "jacobi_2d": ("A", "B"),
    "heat_3d": ("A", "B"),
    "mandelbrot": ("count",),
    "cholesky": ("A",),
    "ludcmp": ("x",),
}  # of all others: ("out",)
OVERWRITTEN = {"syrk": ("C",), "jacobi_2d": ("A", "B"), "heat_3d": ("A", "B"), "cholesky": ("A",), "ludcmp": ("A",)}
MODULES = ("dace_array_kernels", "dace_row_kernels")


def configure(blas: bool = True, build_type: str = "Release", flags: str = FLAGS) -> bool:
    """Sets DaCe up for this process; whether a BLAS library is used."""
    from dace.config import Config
    from dace.libraries import blas as library

    library.default_implementation = None
    prefixed = openblas() if blas else None
    if prefixed is not None:
        flags += "".join(f" -D{name}=scipy_{name}" for name in BLAS_NAMES)
    Config.set("compiler", "build_type", value=build_type)
    Config.set("compiler", "cpu", "args", value=flags)
    return prefixed is not None


def openblas() -> Path | None:
    """Points DaCe to the OpenBLAS of the wheel ``scipy-openblas32``, whose names carry a prefix; None without it."""
    try:
        wheel = importlib.import_module("scipy_openblas32")
    except ImportError:
        return None
    from dace.libraries import blas
    from dace.libraries.blas.environments import OpenBLAS

    library = Path(wheel.get_lib_dir()) / "libscipy_openblas.so"
    OpenBLAS.cmake_packages, OpenBLAS.cmake_variables, OpenBLAS.cmake_link_flags = [], {}, []
    OpenBLAS.cmake_includes = [wheel.get_include_dir()]
    OpenBLAS.cmake_libraries = staticmethod(lambda: [str(library)])
    blas.default_implementation = "OpenBLAS"
    return library


def program(name: str) -> Any:
    """A program of the study by its name, such as ``syrk_map``; None where there is none."""
    for module in MODULES:
        found = getattr(importlib.import_module(f"motley.bench.kernel_study.{module}"), name, None)
        if found is not None:
            return found
    return None


def build(name: str, folder: Path, device: str = "cpu") -> tuple[Any, float]:
    """A compiled program and the seconds that parsing and compiling took; made once for a source and its settings."""
    from dace.config import Config
    from dace.sdfg.utils import load_precompiled_sdfg

    place = folder / f"{name}-{device}-{_fingerprint(Config.get('compiler', 'cpu', 'args'))}"
    told = place / "seconds.json"
    if told.is_file():
        return load_precompiled_sdfg(str(place)), float(json.loads(told.read_text()))
    begun = time.perf_counter()
    graph = program(name).to_sdfg(simplify=True)
    if device == "cuda":
        graph.apply_gpu_transformations()
    graph.build_folder = str(place)
    compiled = graph.compile()
    seconds = time.perf_counter() - begun
    told.write_text(json.dumps(seconds))
    return compiled, seconds


def _fingerprint(flags: str) -> str:
    here = Path(__file__).parent
    sources = b"".join((here / f"{module}.py").read_bytes() for module in MODULES)
    return hashlib.sha256(sources + flags.encode()).hexdigest()[:12]


def bind(compiled: Any, kernel: str, inputs: Inputs) -> Callable[[], tuple[Array, ...]]:
    """A call without arguments: puts what is overwritten back, then runs the program without any checks."""
    symbols = _symbols(compiled.sdfg, inputs)
    overwritten = OVERWRITTEN.get(kernel, ())
    given = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in inputs.items()}
    for name, kind in compiled.sdfg.arglist().items():
        if name not in given and name not in symbols:
            shape = [int(extent.subs(symbols)) if hasattr(extent, "subs") else int(extent) for extent in kind.shape]
            given[name] = np.zeros(shape, kind.dtype.type)
    arguments = compiled._construct_args({**given, **symbols})
    compiled(**given, **symbols)
    outputs = tuple(given[name] for name in OUTPUTS.get(kernel, ("out",)))

    def call() -> tuple[Array, ...]:
        for name in overwritten:
            np.copyto(given[name], inputs[name])
        compiled.fast_call(*arguments)
        return tuple(np.tril(out) for out in outputs) if kernel == "cholesky" else outputs

    return call


def _symbols(graph: Any, inputs: Inputs) -> dict[str, int]:
    """Sizes by the letters of the annotations, read off the arrays that are given."""
    import sympy

    found: dict[str, int] = {}
    for name, kind in graph.arglist().items():
        if isinstance(inputs.get(name), np.ndarray):
            for extent, number in zip(kind.shape, inputs[name].shape, strict=True):
                free = list(getattr(extent, "free_symbols", ()))
                if len(free) == 1:  # N, or N + 1
                    symbol = free[0]
                    found[str(symbol)] = int(sympy.solve(extent - number, symbol)[0])
    return found
