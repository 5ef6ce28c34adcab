"""What the paper says of its kernels, judged by what was measured here: holds, does not, or cannot tell.

A claim is a factor that a ratio of times must reach. It holds where the 95 % interval of every ratio it names lies
above the factor, fails where one lies below, and otherwise the data cannot tell. Passes alternate, so ratios within a
unit are taken pass by pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from motley.bench.kernel_study.study_case import CASES
from motley.bench.kernel_study.study_table import DACE, Place, Ratio, StudyTable
from motley.bench.kernel_study.study_ways import BASE
from motley.bench.kernel_study.two_processes import LIGHT, VECTOR
from motley.reproduce.claims import interval

PAPER = "Chang et al.: Reproducing Performance of Data-Centric Python by SCC Team from National Tsing Hua University"
SPEC = "what was expected of the server's kernels before measuring"
GAINED, FLAT = ("heat_3d", "mandelbrot", "spmv"), ("atax", "bicg", "durbin")
NEARLY = 0.8  # efficiency that counts as nearly perfect


@dataclass(frozen=True)
class Judged:
    """A claim with the paper's number, ours, and the verdict."""

    text: str
    paper: str
    here: str
    holds: bool | None
    why: str
    source: str = PAPER

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


Named = tuple[str, Ratio | None]


def verdict(ratios: Sequence[Named], factor: float) -> bool | None:
    """Whether all ratios exceed a factor."""
    found = [_one(ratio, factor) for _, ratio in ratios]
    return False if False in found else None if None in found or not found else True


def _one(ratio: Ratio | None, factor: float) -> bool | None:
    if ratio is None or math.isnan(ratio.low):
        return None
    return True if ratio.low > factor else False if ratio.high < factor else None


def judge(text: str, paper: str, ratios: Sequence[Named], factor: float, source: str = PAPER) -> Judged:
    """A claim that ratios exceed a factor."""
    here = ", ".join(f"{name} {ratio.middle:.3g}x" for name, ratio in ratios if ratio is not None) or "not measured"
    told = "; ".join(f"{name}: {ratio if ratio is not None else 'not measured'}" for name, ratio in ratios)
    return Judged(text, paper, here, verdict(ratios, factor), f"factor {factor:g} asked; {told}", source)


def speeds(table: StudyTable, kernels: Sequence[str], way: str, size: str = "medium") -> list[Named]:
    """Speeds over NumPy of some kernels, with all cores."""
    return [(kernel, table.speed(Place(kernel, size, way, table.cores))) for kernel in kernels]


def in_general(table: StudyTable) -> Judged:
    """The geometric mean over kernels; its interval is over kernels, not passes."""
    found = [ratio for _, ratio in speeds(table, table.kernels("array"), DACE) if ratio is not None]
    logs = [math.log(ratio.middle) for ratio in found]
    mean = None
    if len(logs) > 1:
        low, high = interval(logs)
        if low is not None and high is not None:
            mean = Ratio(*(math.exp(value) for value in (sum(logs) / len(logs), low, high)))
    faster = sum(value > 0 for value in logs)
    made = judge(
        "Array kernels are faster in DaCe than in NumPy, taken together",
        "consistent improvements over 56 kernels (44 cores)", [("geometric mean", mean)], 1.0,
    )  # fmt: skip
    return Judged(made.text, made.paper, f"{made.here}; {faster} of {len(logs)} kernels faster", made.holds, made.why)


def less_gained(table: StudyTable) -> Judged:
    """Intervals of the two kinds of kernels must not meet."""
    much = [ratio for _, ratio in speeds(table, GAINED, DACE) if ratio is not None]
    little = [ratio for _, ratio in speeds(table, FLAT, DACE) if ratio is not None]
    complete = len(much) == len(GAINED) and len(little) == len(FLAT)
    holds = _apart(much, little) if complete else None
    named = [*speeds(table, GAINED, DACE), *speeds(table, FLAT, DACE)]
    made = judge("atax, bicg and durbin gain less than heat_3d, mandelbrot and spmv", "no substantial gain", named, 1.0)
    return Judged(made.text, made.paper, made.here, holds, made.why.replace("factor 1 asked; ", ""))


def _apart(much: Sequence[Ratio], little: Sequence[Ratio]) -> bool | None:
    """Whether all of one kind lie above all of the other."""
    if min(ratio.low for ratio in much) > max(ratio.high for ratio in little):
        return True
    return False if min(ratio.high for ratio in much) < max(ratio.low for ratio in little) else None


def _map_over_range(table: StudyTable, size: str) -> Judged:
    place = Place("syrk", size, "dace map", table.cores)
    ratio = table.ratio(place._replace(way="dace range"), place)
    text = f"An explicit map makes syrk an order of magnitude faster than a plain range, {size} size"
    return judge(text, "30x", [(f"syrk {size}", ratio)], 10.0)


def _many_threads(table: StudyTable) -> Judged:
    counts = table.threads("durbin", "small")
    many, few = Place("durbin", "small", "dace map", max(counts, default=1)), Place("durbin", "small", "dace map", 1)
    name = f"durbin with {many.threads} threads over one"
    text = "Too many threads make a small kernel slower (durbin)"
    return judge(text, "slower than NumPy with 44 threads, 2x faster with 8", [(name, table.ratio(many, few))], 1.0)


def _atomics(table: StudyTable) -> list[Judged]:
    place = Place("conv2d", "medium", "dace range", table.cores)
    lost = table.ratio(place, place._replace(way=BASE))
    cost = table.ratio(place, place._replace(way="dace map"))
    return [
        judge("A convolution that DaCe turns into atomic additions loses to NumPy", "lenet, resnet slower than NumPy",
              [("conv2d's time over NumPy's", lost)], 1.0),
        judge("The same convolution without atomic additions is faster", "decreased performance by atomics",
              [("conv2d with atomics over without", cost)], 1.0),
    ]  # fmt: skip


def _library(table: StudyTable, way: str, paper: str) -> Judged:
    """A library's call against the loop, in one way."""
    loop, call = Place("cholesky", "medium", way, table.cores), Place("cholesky2", "medium", way, table.cores)
    text = f"A library call inside beats the hand-written loop ({way}, cholesky2 against cholesky)"
    return judge(text, paper, [("cholesky over cholesky2", table.ratio(loop, call))], 1.0)


def _distributed(table: StudyTable) -> list[Judged]:
    rows = {row["kernel"]: row for row in table.extras.get("two_processes", []) if row.get("samples")}

    def efficiency(name: str) -> Named:
        values = [sample[0] / (2 * sample[1]) for sample in rows[name]["samples"]] if name in rows else []
        low, high = interval(values)
        return name, None if low is None or high is None else Ratio(sum(values) / len(values), low, high)

    light, heavy = [efficiency(name) for name in LIGHT], [efficiency(name) for name in VECTOR]
    base = light[0][1]
    against = [(name, _over(base, ratio)) for name, ratio in heavy]
    return [
        judge("Without communication two processes are nearly twice as fast (doitgen; efficiency; a trend)",
              "nearly perfect efficiency", light, NEARLY),
        judge("Matrix-vector kernels scale worse (efficiency of doitgen over theirs; a trend)",
              "rapid drop beyond two nodes", against, 1.0),
    ]  # fmt: skip


def _over(a: Ratio | None, b: Ratio | None) -> Ratio | None:
    """A quotient with the widest interval the two allow."""
    if a is None or b is None or b.low <= 0:
        return None
    return Ratio(a.middle / b.middle, a.low / b.high, a.high / b.low)


def _beside(table: StudyTable, kernel: str, slow: str, quick: str) -> Ratio | None:
    """Two ways of one kernel at the medium size."""
    place = Place(kernel, "medium", slow, table.cores)
    return table.ratio(place, place._replace(way=quick))


def _of_server(table: StudyTable) -> list[Judged]:
    order, sums = ("trimmed_mean", "median"), ("masked_mean", "dequantise_add")
    taken = (*order, "top_k")
    return [
        judge("Compiled order statistics are ten times NumPy's", "10 to 70x", speeds(table, order, "motley compiled"),
              10.0, SPEC),
        judge("The plain fallback is several times NumPy's", "several times",
              speeds(table, taken, "motley plain"), 2.0, SPEC),
        judge("What Motley compiles is faster than NumPy", "taken where it wins",
              speeds(table, taken, "motley compiled"), 1.0, SPEC),
        judge("What Motley compiles is faster than its own plain way", "taken where it wins",
              [(name, _beside(table, name, "motley plain", "motley compiled")) for name in taken], 1.0, SPEC),
        judge("Compiled sums (masked mean, dequantisation) beat torch's; else torch's stay", "taken where it wins",
              [(name, _beside(table, name, "torch", "numba")) for name in sums], 1.0, SPEC),
    ]  # fmt: skip


def on_cpu(table: StudyTable) -> list[Judged]:
    syrk = Place("syrk", "medium", "dace map", table.cores)
    return [
        in_general(table),
        *(judge(f"{kernel} is an order of magnitude faster in DaCe than in NumPy", "up to 100x",
                speeds(table, [kernel], DACE), 10.0) for kernel in GAINED),
        less_gained(table),
        _map_over_range(table, "medium"),
        _map_over_range(table, "small"),
        judge("syrk with an explicit map is a thousand times NumPy", "16,500x (44 cores)",
              [("syrk", table.speed(syrk))], 1000.0),
        _many_threads(table),
        *_atomics(table),
        judge("Functions such as sin are faster than NumPy's, which uses one thread (arc_distance)", "faster",
              speeds(table, ["arc_distance"], DACE), 1.0),
        _library(table, "numpy", "cholesky2 much faster (on a GPU)"),
        _library(table, "dace range", "cholesky2 much faster (on a GPU)"),
        *_distributed(table),
        *_of_server(table),
    ]  # fmt: skip


def on_gpu(table: StudyTable) -> list[Judged]:
    """DaCe's CUDA backend is not built here; torch and Triton stand for the same kernels on a GPU."""

    def slower(kernel: str) -> Judged:
        place = Place(kernel, "medium", BASE, table.cores)
        ratio = table.ratio(place._replace(way="torch"), place)
        text = f"Scalar loops are slower on a GPU than NumPy on the CPU ({kernel}, by torch)"
        return judge(text, "slower", [(f"{kernel}'s time over NumPy's", ratio)], 1.0)

    return [
        slower("cholesky"),
        slower("ludcmp"),
        _library(table, "torch", "significantly faster (cuBLAS)"),
        judge("heat_3d is a hundred times NumPy on a GPU (Triton)", "over 100x",
              speeds(table, ["heat_3d"], "triton"), 100.0),
        judge("arc_distance is faster on a GPU than NumPy (Triton)", "faster",
              speeds(table, ["arc_distance"], "triton"), 1.0),
        judge("A convolution without atomics is faster on a GPU than NumPy (torch)", "resnet slower, by atomics",
              speeds(table, ["conv2d"], "torch"), 1.0),
    ]  # fmt: skip


def judge_all(table: StudyTable) -> list[Judged]:
    """Every claim that concerns the device."""
    assert CASES
    claims: Callable[[StudyTable], list[Judged]] = on_gpu if table.device == "cuda" else on_cpu
    return claims(table)
