"""Every kernel of the study in every way that can be had here, against float64 at odd sizes."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from motley.bench.kernel_study import study_ways
from motley.bench.kernel_study.dace_environment import default_folder, is_ready, python_of
from motley.bench.kernel_study.study_case import CASES, StudyCase, largest_difference, share_of_mismatches
from motley.bench.kernel_study.study_process import StudyProcess
from motley.server.row_offers import loops
from tests.kernels import INTERPRETED, needs_kernels

ARRAY = ["syrk", "gemm", "atax", "bicg", "durbin", "jacobi_2d", "heat_3d", "spmv", "mandelbrot", "cholesky", "conv2d"]
ARRAY += ["softmax", "arc_distance", "ludcmp", "cholesky2"]
SERVER = ["streaming_mean", "batched_mean", "masked_mean", "trimmed_mean", "median", "krum_distances"]
SERVER += ["dequantise_add", "clip_sum", "top_k", "ternarise"]


def test_all_kernels_are_there() -> None:
    assert {name for name, case in CASES.items() if case.group == "array"} == set(ARRAY)
    assert {name for name, case in CASES.items() if case.group == "server"} == set(SERVER)


def error_of(name: str, way: str) -> tuple[float, float]:
    """The error of a kernel at the tiny size, and what is allowed."""
    case = CASES[name]
    inputs = case.inputs("tiny")
    before = {key: value.copy() for key, value in inputs.items() if isinstance(value, np.ndarray)}
    ready = study_ways.make_ready(name, way, inputs, "cpu", Path())
    found = study_ways.outputs(ready.call())
    again = study_ways.outputs(ready.call())
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True)), "a second call gives the same"
    assert all(np.array_equal(inputs[key], value) for key, value in before.items()), "inputs stay as they are"
    return case.error(found, case.wanted(inputs)), case.tolerance


@pytest.mark.parametrize("way", ["numpy", "torch", "motley plain"])
@pytest.mark.parametrize("name", ARRAY + SERVER)
def test_it_gives_what_float64_gives(name: str, way: str) -> None:
    if way == "motley plain" and name not in study_ways.MOTLEY:
        pytest.skip("not among what Motley's server has")
    error, allowed = error_of(name, way)
    assert error <= allowed


@needs_kernels
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ARRAY + SERVER)
def test_triton_gives_what_float64_gives(name: str) -> None:
    module = importlib.import_module(f"{study_ways.PACKAGE}.{study_ways.KERNELS['triton'][CASES[name].group]}")
    if not hasattr(module, name):
        pytest.skip("left to torch's libraries")
    if name == "arc_distance" and INTERPRETED:
        pytest.skip("Triton's interpreter has no atan2")
    error, allowed = error_of(name, "triton")
    assert error <= allowed


@pytest.mark.skipif(loops() is None, reason="needs Numba")
def test_numba_gives_what_float64_gives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The loops as Python runs them, which takes no compiler; the study checks what is compiled before it times it."""
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    with StudyProcess(sys.executable, "motley", "cpu", 1, tmp_path) as worker:
        assert worker.ask("facts", 60.0)["ways"]["numba"] == list(CASES)
        for name in CASES:
            answer = worker.ask("check", 60.0, kernel=name, size="tiny", way="numba")
            assert answer["ok"], f"{name}: {answer}"
            assert answer["right"], f"{name}: {answer}"


@pytest.mark.slow
@pytest.mark.skipif(not is_ready(default_folder()), reason="needs the environment of --with dace")
@pytest.mark.parametrize("way", ["dace range", "dace map"])
def test_dace_gives_what_float64_gives(way: str, tmp_path: Path) -> None:
    with StudyProcess(str(python_of(default_folder())), "dace", "cpu", 1, tmp_path) as worker:
        answer = worker.ask("check", 240.0, kernel="atax", size="tiny", way=way)
    assert answer["ok"], answer
    assert answer["right"], answer


def test_inputs_are_the_same_for_everybody() -> None:
    """Also in another process, as DaCe's is."""
    told = (
        "from motley.bench.kernel_study import array_cases, server_cases\n"
        "from motley.bench.kernel_study.study_case import CASES\n"
        "print(repr(float(CASES['spmv'].inputs('tiny')['values'].sum())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert float(done.stdout) == float(CASES["spmv"].inputs("tiny")["values"].sum())


def test_errors_by_hand() -> None:
    one = [np.array([1.0, 4.0])]
    assert largest_difference([np.array([1.0, 3.0])], one) == 0.25
    assert largest_difference([np.array([1.0, np.nan])], one) == float("inf")
    assert largest_difference([np.array([1.0])], one) == float("inf"), "another shape"
    assert share_of_mismatches([np.array([1, 2, 3, 5])], [np.array([1, 2, 3, 4])]) == 0.25


@pytest.mark.parametrize(
    ("name", "size", "wanted"),
    [
        ("gemm", {"N": 2, "M": 3, "K": 5}, 8 * (10 + 15 + 12)),
        ("top_k", {"K": 3, "P": 10}, 120),
        ("atax", {"N": 2, "M": 3}, 48),
    ],
)
def test_bytes_by_hand(name: str, size: dict[str, int], wanted: float) -> None:
    assert CASES[name].traffic(size) == wanted


def test_answers_by_hand() -> None:
    def answer(name: str, **inputs: Any) -> list[Any]:
        case: StudyCase = CASES[name]
        return [one.tolist() for one in case.wanted(inputs)]

    assert answer("syrk", alpha=2.0, beta=3.0, C=np.ones((2, 2)), A=np.array([[1.0], [2.0]])) == [[[5, 1], [7, 11]]]
    assert answer("durbin", r=np.array([0.5])) == [[-0.5]]
    assert answer("median", rows=np.array([[1.0], [5.0], [2.0], [4.0]])) == [[3.0]]
    assert answer("krum_distances", rows=np.array([[0.0, 0.0], [3.0, 4.0]])) == [[[0, 25], [25, 0]]]
    assert answer("clip_sum", rows=np.array([[3.0, 4.0], [0.3, 0.4]]), limit=1.0) == [pytest.approx([0.9, 1.2])]
    assert answer("ternarise", rows=np.array([[3.0, -4.0, 1.0]]), k=2) == [[[1, -1, 0]], [3.5]]
