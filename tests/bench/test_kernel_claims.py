"""What the kernel study says of the paper's claims, from tables made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from motley.bench.kernel_study.study_claims import Judged, judge, judge_all, verdict
from motley.bench.kernel_study.study_pages import as_json, markdown
from motley.bench.kernel_study.study_record import Measured, Outcome, Unit
from motley.bench.kernel_study.study_table import Place, Ratio, StudyTable

NEAR = (1.0, 1.01, 0.99)


def measured(kernel: str, size: str, threads: int = 2, device: str = "cpu", **seconds: float) -> Measured:
    """A unit with three passes of each way."""
    outcomes = [
        Outcome(way.replace("_", " "), "right", "", 0.0, None, 1, [near * value for near in NEAR])
        for way, value in seconds.items()
    ]
    return Measured(Unit(kernel, size, threads, device), outcomes, 0.25, 3)


def table_of(*units: Measured, device: str = "cpu", **extras: Any) -> StudyTable:
    return StudyTable(units, device, 2, extras)


def claim(table: StudyTable, words: str) -> Judged:
    (found,) = [one for one in judge_all(table) if words in one.text]
    return found


def test_speeds_and_shares() -> None:
    table = table_of(measured("median", "medium", numpy=1.0, torch=0.25), **{"facts/cpu/2": {"bandwidth": 1e9}})
    place = Place("median", "medium", "torch", 2)
    speed = table.speed(place)
    assert speed is not None
    assert speed.middle == pytest.approx(4.0)
    assert speed.high - speed.low < 1e-9, "passes are compared pair by pair"
    assert table.share(place, table.bandwidth(2)) == pytest.approx(4 * 51 * 400_000 / 0.25 / 1e9)
    assert table.speed(place._replace(way="numba")) is None


def test_dace_is_the_quicker_of_its_ways() -> None:
    table = table_of(measured("spmv", "medium", numpy=1.0, dace_range=0.5, dace_map=0.1))
    assert claim(table, "spmv is an order of magnitude faster").here == "spmv 10x"


@pytest.mark.parametrize(
    ("low", "high", "holds"),
    [(1.1, 2.0, True), (0.5, 0.9, False), (0.9, 1.1, None), (float("nan"), float("nan"), None)],
)
def test_a_claim_holds_where_its_interval_is_above_the_factor(low: float, high: float, holds: bool | None) -> None:
    assert verdict([("a", Ratio(1.0, low, high))], 1.0) is holds


def test_one_that_fails_decides_and_one_that_is_missing_leaves_it_open() -> None:
    good, bad = ("good", Ratio(2.0, 1.9, 2.1)), ("bad", Ratio(0.5, 0.4, 0.6))
    assert verdict([good, bad, ("missing", None)], 1.0) is False
    assert verdict([good, ("missing", None)], 1.0) is None
    assert judge("text", "paper", [("missing", None)], 1.0).here == "not measured"


def test_claims_of_the_paper() -> None:
    table = table_of(
        measured("syrk", "medium", numpy=1.0, dace_range=0.32, dace_map=0.01),
        measured("durbin", "small", 1, numpy=1.0, dace_map=0.1),
        measured("durbin", "small", 8, numpy=1.0, dace_map=0.9),
        measured("conv2d", "medium", numpy=1.0, dace_range=2.0, dace_map=0.5),
        measured("cholesky", "medium", numpy=1.0, dace_range=0.5),
        measured("cholesky2", "medium", numpy=0.1, dace_range=0.1),
    )
    assert claim(table, "plain range, medium").holds is True
    assert claim(table, "plain range, small").holds is None
    assert claim(table, "thousand times").holds is False
    assert claim(table, "Too many threads").holds is True
    assert claim(table, "atomic additions loses").holds is True
    assert claim(table, "without atomic additions is faster").holds is True
    assert claim(table, "library call inside beats the hand-written loop (numpy").holds is True
    assert claim(table, "taken together").here.endswith("3 of 4 kernels faster")


def test_claims_of_a_gpu() -> None:
    table = table_of(
        measured("cholesky", "medium", device="cuda", numpy=0.01, torch=1.0),
        measured("cholesky2", "medium", device="cuda", numpy=0.01, torch=0.001),
        measured("heat_3d", "medium", device="cuda", numpy=1.0, triton=0.005),
        device="cuda",
    )
    assert claim(table, "(cholesky, by torch)").holds is True
    assert claim(table, "(ludcmp, by torch)").holds is None
    assert claim(table, "cholesky2 against cholesky").holds is True
    assert claim(table, "heat_3d is a hundred times").holds is True


def test_two_processes_are_judged_by_efficiency() -> None:
    light = {"kernel": "doitgen", "samples": [[1.0, 0.52, 0.0], [1.0, 0.51, 0.0], [1.0, 0.52, 0.0]]}
    heavy = [{"kernel": name, "samples": [[1.0, 1.0, 0.4]] * 3} for name in ("atax", "bicg", "mvt", "gesummv")]
    table = table_of(measured("syrk", "tiny", numpy=1.0), two_processes=[light, *heavy])
    assert claim(table, "nearly twice as fast").holds is True
    assert claim(table, "Matrix-vector kernels scale worse").holds is True


def test_pages_tell_everything() -> None:
    failed = Outcome("dace range", "failed", "no compiler")
    unit = measured("syrk", "medium", numpy=1.0, numba=0.1)
    unit.outcomes.append(failed)
    trap = {"trap": "views", "what": "views are refused", "shown": True, "seen": "refused", "avoided_by": "copies"}
    table = table_of(unit, traps=[trap])
    machine = {"processor": "a processor", "begun": "then", "command": "motley bench kernels", "commit": "abc"}
    page = markdown(table, judge_all(table), machine)
    assert "| syrk (N=150, M=200) | 1e+03 ±" in page
    assert ", **10x** |" in page
    assert "dace range, syrk, medium, 2 threads: failed: no compiler" in page
    assert "views are refused" in page
    assert "Others used 25 %" in page
    row = next(row for row in as_json(table, [], machine)["rows"] if row["way"] == "numba")
    assert (row["ms"], row["times_numpy"], row["status"]) == (100.0, 10.0, "right")
