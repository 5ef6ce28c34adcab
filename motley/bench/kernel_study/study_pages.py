"""The study for people: tables in markdown; and for machines: everything as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from motley.bench.kernel_study.study_case import CASES
from motley.bench.kernel_study.study_claims import Judged
from motley.bench.kernel_study.study_record import Outcome, median_and_quartiles
from motley.bench.kernel_study.study_run import COMPILED
from motley.bench.kernel_study.study_table import Place, StudyTable
from motley.bench.kernel_study.study_ways import BASE
from motley.reproduce.pages import HOLDS

Row = dict[str, Any]
GROUPS = {"array": "Array kernels", "server": "Server kernels"}


def rows(table: StudyTable) -> list[Row]:
    """One row per way of every unit, without the single samples."""
    return [_row(table, unit.unit.kernel, unit.unit.size, unit.unit.threads, outcome, unit.busy)
            for unit in table.units.values() for outcome in unit.outcomes]  # fmt: skip


def _row(table: StudyTable, kernel: str, size: str, threads: int, outcome: Outcome, busy: float) -> Row:
    case, place = CASES[kernel], Place(kernel, size, outcome.way, threads)
    middle = low = high = speed = share = None
    if outcome.status == "right" and outcome.samples:
        middle, low, high = (_short(1e3 * value) for value in median_and_quartiles(outcome.samples))
        over, share = table.speed(place), _short(table.share(place, table.bandwidth(threads)))
        speed = None if over is None else _short(over.middle)
    return {
        "group": case.group, "kernel": kernel, "size": size, "shape": case.shape(size), "way": outcome.way,
        "device": table.device if outcome.way != BASE else "cpu", "threads": threads, "status": outcome.status,
        "error": _short(outcome.error), "tolerance": case.tolerance, "compile_s": outcome.compile_seconds,
        "ms": middle, "ms_low": low, "ms_high": high, "passes": len(outcome.samples), "times_numpy": speed,
        "share_of_bandwidth": share, "busy": busy, "note": outcome.note,
    }  # fmt: skip


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def as_json(table: StudyTable, claims: Sequence[Judged], machine: Row) -> Row:
    """All there is."""
    two = [
        {key: value for key, value in row.items() if key != "samples"} for row in table.extras.get("two_processes", [])
    ]
    return {
        "machine": machine, "device": table.device, "cores": table.cores, "rows": rows(table),
        "claims": [claim.as_json() for claim in claims], "traps": table.extras.get("traps", []), "two_processes": two,
    }  # fmt: skip


def markdown(table: StudyTable, claims: Sequence[Judged], machine: Row) -> str:
    """The whole page."""
    where = machine.get("gpu") if table.device == "cuda" else machine.get("processor")
    lines = [f"# Kernel study on {where}", "", *_facts(table, machine), ""]
    lines += ["## Claims", "", "| claim | paper | here | holds here | why |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {one.text} | {one.paper} | {one.here} | {HOLDS[one.holds]} | {one.why} |" for one in claims]
    for group, title in GROUPS.items():
        for size in reversed(table.sizes(group)):
            for threads in _common_threads(table, group, size):
                lines += _times(table, group, title, size, threads)
    lines += [
        *_bandwidths(table),
        *_threads(table),
        *_compiling(table),
        *_traps(table),
        *_two(table),
        *_failures(table),
    ]
    return "\n".join(lines) + "\n"


def _facts(table: StudyTable, machine: Row) -> list[str]:
    busy = [unit.busy for unit in table.units.values()] or [0.0]
    facts = table.extras.get(f"facts/{table.device}/{table.cores}", {}).get("facts", {})
    told = []
    for name, found in facts.items():
        versions = ", ".join(f"{package} {version}" for package, version in found["packages"].items())
        told.append(f"{name}: Python {found['python']}, {versions}")
    speeds = [f"{value / 1e9:.3g} GB/s with {threads}" for threads in _all_threads(table)
              if (value := table.bandwidth(threads)) is not None]  # fmt: skip
    gpu = f", {machine['gpu']}" if machine.get("gpu") else ""
    compiler = machine.get("compiler") or "no g++"
    return [
        f"{machine.get('processor')}, {table.cores} cores{gpu}; {'; '.join(told)}; {compiler}. "
        f"A large copy moves {', '.join(speeds) or 'unknown'} threads.",
        f"Measured from {machine.get('begun', 'unknown')} to {machine.get('ended', 'unknown')}. Others used "
        f"{100 * statistics.median(busy):.0f} % of the cores before a unit (median), at most "
        f"{100 * max(busy):.0f} %. "
        f"Commit {machine.get('commit')}; made by `{machine.get('command')}`.",
        "",
        "Times are medians of passes in which all ways take turns, with half the distance of the quartiles in percent, "
        "and how many times as fast as NumPy that is. Every result was compared with float64 before; a wrong one "
        "is not timed. Intervals are 95 % t-intervals over passes.",
    ]


def _all_threads(table: StudyTable) -> list[int]:
    return sorted({unit.unit.threads for unit in table.units.values()})


def _common_threads(table: StudyTable, group: str, size: str) -> list[int]:
    """Numbers of threads that all kernels of a group have, all cores first."""
    sets = [set(table.threads(kernel, size)) for kernel in table.kernels(group)]
    return sorted(set.intersection(*sets), reverse=True) if sets else []


def _header(names: Sequence[str]) -> list[str]:
    return [f"| | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]


def _times(table: StudyTable, group: str, title: str, size: str, threads: int) -> list[str]:
    ways = table.ways(group)
    plural = "s" if threads > 1 else ""
    lines = ["", f"## {title}, {size}, {threads} thread{plural}: milliseconds, and times NumPy", "", *_header(ways)]
    for kernel in table.kernels(group):
        cells = [_time(table, Place(kernel, size, way, threads)) for way in ways]
        lines.append(f"| {kernel} ({CASES[kernel].shape(size)}) | {' | '.join(cells)} |")
    return lines


def _time(table: StudyTable, place: Place) -> str:
    found = table.outcome(place)
    if found is None:
        unit = table.unit(place.kernel, place.size, place.threads)
        status = next((one.status for one in unit.outcomes if one.way == place.way), "") if unit else ""
        return status if status in ("wrong", "failed") else ""
    middle, low, high = median_and_quartiles(found.samples)
    speed = table.speed(place)
    told = f"{1e3 * middle:.3g} ±{50 * (high - low) / middle:.0f} %"
    return told if speed is None or place.way == BASE else f"{told}, **{speed.middle:.3g}x**"


def _bandwidths(table: StudyTable) -> list[str]:
    """What share of the bandwidth of a copy the bytes that must be moved make up."""
    lines: list[str] = []
    for group, title in GROUPS.items():
        ways, sizes = table.ways(group), table.sizes(group)
        bandwidth = table.bandwidth(table.cores)
        if not sizes or bandwidth is None:
            continue
        lines += [
            "",
            f"## {title}, {sizes[-1]}: share of the measured bandwidth, {table.cores} threads",
            "",
            *_header(ways),
        ]
        for kernel in table.kernels(group):
            shares = [table.share(Place(kernel, sizes[-1], way, table.cores), bandwidth) for way in ways]
            cells = ["" if share is None else f"{100 * share:.3g} %" for share in shares]
            lines.append(f"| {kernel} | {' | '.join(cells)} |")
        lines += ["", "More than 100 %: the data stay in the cache, or in the GPU's."]
    return lines


def _threads(table: StudyTable) -> list[str]:
    """Kernels that were also measured with more threads than cores."""
    many = [kernel for kernel in CASES if len(table.threads(kernel, "small")) > 2]
    if not many:
        return []
    counts = sorted({threads for kernel in many for threads in table.threads(kernel, "small")})
    lines = ["", "## Threads: milliseconds at the small size", "", *_header([str(count) for count in counts])]
    for kernel in many:
        for way in table.ways(CASES[kernel].group):
            lines += _by_threads(table, kernel, way, counts)
    return lines


def _by_threads(table: StudyTable, kernel: str, way: str, counts: Sequence[int]) -> list[str]:
    found = [table.outcome(Place(kernel, "small", way, count)) for count in counts]
    if not any(found):
        return []
    cells = ["" if one is None else f"{1e3 * statistics.median(one.samples):.3g}" for one in found]
    return [f"| {kernel}, {way} | {' | '.join(cells)} |"]


def _compiling(table: StudyTable) -> list[str]:
    """The longest first call or build of each kernel and way: later ones find it done."""
    found = _longest_compile(table)
    ways = [way for way in COMPILED if any(key[1] == way and value > 0 for key, value in found.items())]
    if not ways:
        return []
    lines = ["", "## Compiling: seconds, apart from all times above", "", *_header(ways)]
    for kernel in dict.fromkeys(key[0] for key in found):
        cells = [f"{found[kernel, way]:.2g}" if found.get((kernel, way)) else "" for way in ways]
        lines.append(f"| {kernel} | {' | '.join(cells)} |")
    return lines


def _longest_compile(table: StudyTable) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for unit in table.units.values():
        for one in unit.outcomes:
            key = unit.unit.kernel, one.way
            found[key] = max(found.get(key, 0.0), one.compile_seconds or 0.0)
    return found


def _traps(table: StudyTable) -> list[str]:
    traps = table.extras.get("traps", [])
    if not traps:
        return []
    lines = ["", "## Traps of DaCe", "", "| trap | shown here | seen | avoided by |", "| --- | --- | --- | --- |"]
    for row in traps:
        cells = (row.get("what", row["trap"]), HOLDS[row["shown"]], row["seen"], row.get("avoided_by", ""))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _two(table: StudyTable) -> list[str]:
    found = table.extras.get("two_processes", [])
    if not found:
        return []
    heads = ["ms alone", "ms together", "efficiency", "quartiles", "of it telling each other"]
    lines = ["", "## Two processes on the loopback: a trend", "", *_header(heads)]
    for row in found:
        if not row.get("samples"):
            lines.append(f"| {row['kernel']} | {row['note']} | | | | |")
            continue
        lines.append(
            f"| {row['kernel']} | {row['ms_alone']:.3g} | {row['ms_together']:.3g} | {row['efficiency']:.2f} | "
            f"{row['low']:.2f} to {row['high']:.2f} | {100 * row['telling']:.0f} % |"
        )
    return [*lines, "", f"Efficiency 1: two processes take half the time. This is {found[0]['note']}."]


def _failures(table: StudyTable) -> list[str]:
    """Everything that gave no time, with the reason; ways that are absent as a whole once."""
    lines: dict[str, None] = {}
    for unit in table.units.values():
        for one in unit.outcomes:
            if one.status == "absent":
                lines[f"- {one.way}: {one.note}"] = None
            elif one.status != "right":
                place = f"{unit.unit.kernel}, {unit.unit.size}, {unit.unit.threads} threads"
                lines[f"- {one.way}, {place}: {one.status}: {one.note}"] = None
    return ["", "## What gave no time", "", *(lines or {"Nothing: every way of every kernel was right.": None})]
