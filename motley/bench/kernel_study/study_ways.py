"""The ways a kernel is computed in: where each is found, what it needs, and how it is made ready to be called."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from motley.bench.kernel_study import array_cases, server_cases
from motley.bench.kernel_study.study_case import CASES, Array, Inputs

PACKAGE = "motley.bench.kernel_study"
BASE = "numpy"
GROUPS = {"array": array_cases, "server": server_cases}
KERNELS = {
    "numpy": {"array": "numpy_arrays", "server": "numpy_rows"},
    "numba": {"array": "numba_array_kernels", "server": "numba_row_kernels"},
    "torch": {"array": "torch_arrays", "server": "torch_rows"},
    "triton": {"array": "triton_array_kernels", "server": "triton_row_kernels"},
}
MOTLEY = ("trimmed_mean", "median", "top_k")
ON = {
    "cpu": {
        "motley": ("numpy", "numba", "torch", "motley plain", "motley compiled"),
        "dace": ("dace range", "dace map"),
    },
    "cuda": {"motley": ("numpy", "torch", "triton"), "dace": ("dace cuda",)},
}
"""Device -> which environment computes in which ways. On a GPU NumPy stays what everything is compared with."""


class AbsentError(Exception):
    """A way that cannot be used here; the text says why."""


class Ready(NamedTuple):
    """A kernel with its inputs in place."""

    call: Callable[[], Any]
    wait: Callable[[], None]  # until the device has done what it was given
    build_seconds: (
        float  # of a compiler that was called before the first call; what the first call compiles comes apart
    )


def no_wait() -> None:
    pass


def outputs(made: Any) -> list[Array]:
    """What a kernel gave, as arrays on the host."""
    several: Sequence[Any] = made if isinstance(made, tuple) else (made,)
    return [one.cpu().numpy() if hasattr(one, "cpu") else np.asarray(one) for one in several]


def needed(way: str, device: str) -> None:
    """Raises where something is missing for a way."""
    if way in ("numba", "motley compiled") and find_spec("numba") is None:
        raise AbsentError("Numba is not installed; pip install 'motley-fl[kernels]'")
    if way == "triton" and find_spec("triton") is None:
        raise AbsentError("Triton is not installed")
    if way == "dace cuda" and shutil.which("nvcc") is None:
        raise AbsentError("DaCe's CUDA backend needs nvcc, which was not found")
    if device == "cuda" and way in ("torch", "triton"):
        import torch

        if not torch.cuda.is_available():
            raise AbsentError("there is no CUDA device")


def kernels_of(way: str, device: str) -> list[str]:
    """The kernels that are written for a way."""
    needed(way, device)
    if way.startswith("motley"):
        return list(MOTLEY)
    if way.startswith("dace"):
        from motley.bench.kernel_study.dace_building import program

        return [name for name in CASES if program(f"{name}_{suffix(way)}") is not None]
    return [name for name, case in CASES.items() if hasattr(_module(way, case.group), name)]


def suffix(way: str) -> str:
    """The ending of a DaCe program's name."""
    return "range" if way == "dace range" else "map"


def _module(way: str, group: str) -> ModuleType:
    return importlib.import_module(f"{PACKAGE}.{KERNELS[way][group]}")


def make_ready(kernel: str, way: str, inputs: Inputs, device: str, folder: Path) -> Ready:
    """Puts the inputs where a way wants them; folder: of compiled DaCe programs."""
    if way.startswith("dace"):
        from motley.bench.kernel_study.dace_building import bind, build

        compiled, seconds = build(f"{kernel}_{suffix(way)}", folder, "cuda" if way == "dace cuda" else "cpu")
        return Ready(bind(compiled, kernel, inputs), no_wait, seconds)
    if way in ("numpy", "numba"):
        run = getattr(_module(way, CASES[kernel].group), kernel)
        return Ready(lambda: run(**inputs), no_wait, 0.0)
    return _ready_in_torch(kernel, way, inputs, device)


def _ready_in_torch(kernel: str, way: str, inputs: Inputs, device: str) -> Ready:
    import torch

    given = {
        key: torch.from_numpy(value).to(device) if isinstance(value, np.ndarray) else value
        for key, value in inputs.items()
    }
    if way.startswith("motley"):
        return Ready(_by_motley(kernel, given, way == "motley compiled"), no_wait, 0.0)
    run = getattr(_module(way, CASES[kernel].group), kernel)
    wait = torch.cuda.synchronize if device == "cuda" else no_wait
    return Ready(lambda: run(**given), wait, 0.0)


def _by_motley(kernel: str, given: dict[str, Any], compiled: bool) -> Callable[[], Any]:
    """What a method of Motley would call; compiled: whatever the size, so that the study can tell from which on."""
    from motley.core.acceleration import without_kernels
    from motley.server import largest_entries, order_statistics, row_offers

    calls: dict[str, Callable[[], Any]] = {
        "trimmed_mean": lambda: order_statistics.trimmed_mean(given["rows"], given["trim"]),
        "median": lambda: order_statistics.median(given["rows"]),
        "top_k": lambda: largest_entries.top_k(given["rows"], given["k"]),
    }

    def by_compiled() -> Any:
        with row_offers.at_any_size():
            return calls[kernel]()

    def plainly() -> Any:
        with without_kernels():
            return calls[kernel]()

    return by_compiled if compiled else plainly
