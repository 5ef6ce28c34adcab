"""`motley bench kernels`: how it measures, what it keeps, what it says."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from motley.bench.kernel_study import dace_environment, study_run, study_ways
from motley.bench.kernel_study.study_process import StudyProcess
from motley.bench.kernel_study.study_record import Outcome, StudyRecord, Unit
from motley.bench.kernel_study.study_run import StudyPlan, make_plan, measure
from motley.bench.kernel_study.two_processes import KERNELS, trend
from motley.core.errors import InputError, UnknownNameError
from tests.cli.conftest import Motley, motley

__all__ = ["motley"]
FEW = ("--only", "durbin,median", "--sizes", "tiny", "--threads", 1, "--passes", 2, "--no-distributed", "--out", "here")


def test_tables_json_and_picture_and_nothing_twice(
    motley: Motley, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # compiling takes longer than all the rest
    first = motley("bench", "kernels", *FEW, "--json")
    assert first.code == 0, first.err
    _check_rows(first.last["rows"])
    assert first.last["machine"]["begun"]
    assert "[1/2, 1 thread] durbin tiny" in first.err
    assert "dace map: not asked for (--with dace)" in (tmp_path / "here" / "table.md").read_text()
    assert (tmp_path / "here" / "table.png").stat().st_size > 5000
    second = motley("bench", "kernels", *FEW)
    assert "durbin tiny" not in second.err, "what was measured is not measured again"
    assert second.out.startswith("# Kernel study on ")
    shown = motley("bench", "kernels", "--show", "--out", "here", "--json")
    assert shown.last["rows"] == first.last["rows"]


def _check_rows(rows: list[dict[str, Any]]) -> None:
    right = [row for row in rows if row["status"] == "right"]
    timed = {(row["kernel"], row["way"]) for row in right if row["ms"] > 0}
    assert timed >= {("durbin", "numpy"), ("durbin", "torch"), ("median", "motley plain")}
    assert all(row["error"] <= row["tolerance"] for row in right)
    assert {row["way"] for row in rows if row["status"] == "absent"} >= {"dace range", "dace map"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--only", "gem"), "did you mean 'gemm'"),
        (("--sizes", "huge"), "There is no size named 'huge'"),
        (("--threads", "two"), "--threads two is no list of numbers of threads such as 1,2."),
        (("--threads", "0"), "--threads 0 is no list of numbers of threads"),
        (("--device", "tpu"), "There is no device 'tpu' for kernels; choose cpu or cuda."),
        (("--with", "julia"), "--with julia is not known; there is --with dace."),
        (("--show", "--out", "empty"), "Nothing was measured in empty"),
    ],
)
def test_wrong_arguments_are_a_sentence(motley: Motley, arguments: tuple[str, ...], sentence: str) -> None:
    ended = motley("bench", "kernels", *arguments)
    assert ended.code == 2
    assert sentence in ended.err
    assert "Traceback" not in ended.err


def test_a_gpu_that_is_not_there_is_said(motley: Motley, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    ended = motley("bench", "kernels", "--device", "cuda", "--out", "here")
    assert ended.code == 2
    assert "There is no CUDA device here" in ended.err
    assert not Path("here").exists()


def test_without_numba_it_says_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_ways, "find_spec", lambda name: None)
    with pytest.raises(study_ways.AbsentError, match=r"motley-fl\[kernels\]"):
        study_ways.kernels_of("numba", "cpu")
    with pytest.raises(study_ways.AbsentError, match="Triton is not installed"):
        study_ways.kernels_of("triton", "cuda")


def test_dace_without_a_compiler_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dace_environment.shutil, "which", lambda tool: None if tool == "cmake" else tool)
    with pytest.raises(InputError, match=r"cmake cannot be found; install that, or leave out --with dace\."):
        dace_environment.make_environment(tmp_path, print)


def test_dace_lives_in_an_environment_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(dace_environment.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(dace_environment, "_run", called.append)
    python = dace_environment.make_environment(tmp_path, lambda _: None)
    assert python == tmp_path / "environment" / "bin" / "python"
    assert called[0] == [sys.executable, "-m", "venv", str(tmp_path / "environment")]
    assert called[1][0] == str(python)
    assert {"dace==1.0.2", "numpy<2", "networkx<3.6"} <= set(called[1])


class Scripted:
    """A worker whose answers are given."""

    def __init__(self, checks: dict[str, dict[str, Any]]) -> None:
        self.checks, self.asked = checks, list[tuple[str, str]]()

    def ask(self, do: str, limit: float, **request: Any) -> dict[str, Any]:
        self.asked.append((do, request.get("way", "")))
        return self.checks[request["way"]] if do == "check" else {"ok": True, "seconds": 0.5}


class Shop:
    def __init__(self, worker: Any, ways: tuple[str, ...], plan: StudyPlan) -> None:
        self.plan, self.workers, self._ways = plan, {"motley": worker}, ways

    def ways(self, kernel: str) -> list[tuple[str, Any, str]]:
        return [(way, self.workers["motley"], "") for way in self._ways]


def test_what_is_wrong_is_not_timed_and_ways_take_turns() -> None:
    right = {"ok": True, "right": True, "error": 0.0, "seconds": 0.5, "compile_seconds": 0.0}
    worker = Scripted(
        {
            "numpy": right,
            "torch": right,
            "numba": {**right, "right": False, "error": 0.3},
            "dace": {"ok": False, "why": "no"},
        }
    )
    shop: Any = Shop(worker, ("numpy", "numba", "dace", "torch"), StudyPlan(("syrk",), passes=3))
    made = measure(Unit("syrk", "tiny", 1, "cpu"), shop)
    assert [(one.way, one.status) for one in made.outcomes] == [
        ("numpy", "right"), ("numba", "wrong"), ("dace", "failed"), ("torch", "right"),
    ]  # fmt: skip
    assert "differs from float64 by 0.3" in made.outcomes[1].note
    assert [way for do, way in worker.asked if do == "time"] == ["numpy", "torch", "torch", "numpy", "numpy", "torch"]
    assert made.outcomes[0].samples == [0.5] * 3


def test_a_worker_that_dies_or_takes_too_long_is_an_answer(tmp_path: Path) -> None:
    with StudyProcess(sys.executable, "motley", "cpu", 1, tmp_path) as worker:
        assert worker.ask("nonsense", 60.0)["ok"] is False
        assert "longer than 0 s" in worker.ask("facts", 0.01)["why"]
    with StudyProcess("/bin/false", "motley", "cpu", 1, tmp_path) as dead:
        assert "the process ended" in dead.ask("facts", 30.0)["why"]


def test_threads_reach_the_worker(tmp_path: Path) -> None:
    worker = StudyProcess(sys.executable, "motley", "cpu", 3, tmp_path)
    variables = worker._variables(str(tmp_path))
    assert {variables[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")} == {"3"}


def test_threads_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_run, "n_cores", lambda: 4)
    plan = make_plan([], ["small", "medium"], "cpu")
    assert (plan.counts, plan.many) == ((1, 4), (8, 16))
    assert {unit.kernel for unit in plan.units(8)} == {"durbin", "jacobi_2d", "softmax"}
    assert {unit.size for unit in plan.units(8)} == {"small"}
    assert len(plan.units(4)) == 2 * 25
    assert make_plan([], ["small"], "cuda").counts == (4,)
    with pytest.raises(UnknownNameError):
        make_plan(["syrkk"], ["small"], "cpu")


def test_records_are_kept_and_those_of_other_code_are_not(tmp_path: Path) -> None:
    record = StudyRecord(tmp_path)
    unit = Unit("syrk", "tiny", 1, "cpu")
    shop: Any = Shop(Scripted({}), (), StudyPlan(("syrk",)))
    made = measure(unit, shop)
    made.outcomes.append(Outcome("numpy", "right", samples=[0.1, 0.2]))
    record.add(made)
    with (tmp_path / "measured.jsonl").open("a") as file:
        file.write('{"code": "cut o')
    again = StudyRecord(tmp_path)
    assert again.has(unit, ["numpy"], 7)
    assert not again.has(unit, ["numpy"], 8)
    assert not again.has(unit, ["numpy", "torch"], 7)
    content = json.loads((tmp_path / "measured.jsonl").read_text().splitlines()[0])
    (tmp_path / "measured.jsonl").write_text(json.dumps({**content, "code": "other"}) + "\n")
    assert not StudyRecord(tmp_path).units


def test_two_processes_agree_with_one_and_are_called_a_trend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "MASTER_ADDR", "127.0.0.1")
    rows = trend("tiny", 2, 120.0)
    assert [row["kernel"] for row in rows] == list(KERNELS)
    assert all(row["right"] and row["error"] < 1e-10 for row in rows), rows
    assert all(row["efficiency"] > 0 and "trend" in row["note"] for row in rows)
