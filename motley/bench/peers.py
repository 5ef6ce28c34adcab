"""The same workload in Motley, in pfl-research, in Flower and in a bare PyTorch loop, side by side in one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from motley.bench import peers_flower, peers_pfl, peers_process
from motley.bench.cases import case_named
from motley.bench.workloads import Plan, Timing, Workload, bare, motley, precision
from motley.core.errors import InputError, MotleyError
from motley.engine import EXECUTORS

CASES = ("cifar10_pfl", "fedsae_logistic", "rebafl_cnn")
PEERS = {peer.NAME: peer for peer in (peers_pfl, peers_flower)}
BARE = "bare loop"

Tell = Callable[[str], None]
Row = dict[str, Any]


def silent(text: str) -> None:
    """Tells nobody."""


class Contender(NamedTuple):
    """Someone who carries out plans."""

    name: str
    present: Callable[[], bool]
    measure: Callable[[Sequence[Plan]], list[Timing]]


def make_plans(
    names: Iterable[str], precision: str, rounds: int, warmup: int = 1, rehearsal: int | None = None
) -> list[Plan]:
    """The cases on this machine: on its GPU where it has one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if rehearsal is None:
        rehearsal = 20 if device == "cuda" else 3
    return [Plan(case_named(name), device, precision, rounds, warmup, rehearsal) for name in names]


def contenders(
    executors: Sequence[str] = (),
    peers: Sequence[str] = tuple(PEERS),
    processes: int = 4,
    limit: float = peers_process.LIMIT,
) -> list[Contender]:
    """The bare loop, Motley's executors, pfl in one process and in several, Flower with as many actors.

    limit: seconds that a peer may take for all plans together.
    """
    for name in peers:
        if name not in PEERS:
            raise InputError(f"There is no peer '{name}'; choose among {', '.join(PEERS)}.")
    if not executors:
        executors = ("batched",) if torch.cuda.is_available() else ("loop", "pool", "batched")
    made = [Contender(BARE, _always, partial(_each, bare))]
    for executor in executors:
        EXECUTORS[executor]
        made.append(Contender(f"motley {executor}", _always, partial(_each, partial(motley, executor=executor))))
    for name in peers:
        counts = sorted({1, processes}) if name == peers_pfl.NAME else [processes]
        for count in counts:
            title = name if count == 1 else f"{name} x{count}"
            measure = partial(PEERS[name].measure, processes=count, limit=limit)
            made.append(Contender(title, PEERS[name].installed, measure))
    return made


def _always() -> bool:
    return True


def _each(train: Callable[[Workload], Timing], plans: Sequence[Plan]) -> list[Timing]:
    return [train(Workload(plan)) for plan in plans]


class Entry(NamedTuple):
    """What became of one case with one contender."""

    plan: Plan
    name: str
    timing: Timing | None
    note: str


def carry_out(plans: Sequence[Plan], who: Sequence[Contender], tell: Tell = silent) -> list[Entry]:
    """Every plan by every contender, in the order of the plans. A peer that is missing or fails is named as such."""
    entries: list[Entry] = []
    for contender in who:
        tell(f"{contender.name} ...")
        timings: Sequence[Timing | None] = [None] * len(plans)
        note = ""
        if not contender.present():
            note = "not installed"
        else:
            try:
                timings = contender.measure(plans)
            except peers_process.UnfinishedError as error:
                timings, note = error.timings, f"failed: {error}"
            except MotleyError as error:
                note = f"failed: {error}"
        for plan, timing in zip(plans, timings, strict=True):
            entries.append(Entry(plan, contender.name, timing, note if timing is None else ""))
            if timing is not None:
                tell(f"  {plan.case.name}: {1000 * _mean(timing):.4g} ms per round")
        if note:
            tell(f"  {note}")
    places = {plan.case.name: place for place, plan in enumerate(plans)}
    return sorted(entries, key=lambda entry: places[entry.plan.case.name])


def _mean(timing: Timing) -> float:
    return sum(timing.seconds) / len(timing.seconds)


# ------------------------------------------------------------------------------------------------ time


def compare(plans: Sequence[Plan], who: Sequence[Contender], tell: Tell = silent) -> list[Row]:
    """One row per case and framework. Ratios say how many times as long a round takes as with the other."""
    with precision(plans[0].precision):
        entries = carry_out(plans, who, tell)
    return [row for plan in plans for row in _rows(plan, [entry for entry in entries if entry.plan is plan])]


def _rows(plan: Plan, entries: Sequence[Entry]) -> list[Row]:
    workload = Workload(plan)
    times = {entry.name: _mean(entry.timing) for entry in entries if entry.timing is not None}
    ours = min((value for name, value in times.items() if name.startswith("motley ")), default=None)
    rows = []
    for entry in entries:
        seconds, note = times.get(entry.name), entry.note
        if entry.timing is not None and entry.timing.steps != workload.wanted_steps:
            note = f"{entry.timing.steps} steps instead of {workload.wanted_steps}"
        rows.append(
            {
                "case": plan.case.name,
                "framework": entry.name,
                "device": _device(plan, entry.name),
                "precision": plan.precision,
                "ms_per_round": _rounded(seconds and 1000 * seconds),
                "client_steps_per_s": _rounded(seconds and workload.counted_steps / plan.rounds / seconds),
                "ratio_to_bare_loop": _ratio(seconds, times.get(BARE)),
                "ratio_to_motley": _ratio(seconds, ours),
                "ratio_to_floor": None,  # `bench engine` measures it
                "note": note,
            }
        )
    return rows


def _device(plan: Plan, name: str) -> str:
    if plan.device == "cpu" or name in ("motley loop", "motley pool"):
        return "cpu"
    return "cuda"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _ratio(seconds: float | None, other: float | None) -> float | None:
    return None if seconds is None or other is None else _rounded(seconds / other)


# ------------------------------------------------------------------------------------------------ the same result


def check(plans: Sequence[Plan], who: Sequence[Contender], tell: Tell = silent) -> list[Row]:
    """Whether all do the same work: from the same start, on data for which the order of minibatches plays no part.

    ``difference``: the largest difference from the bare loop's weights, as a share of the largest change it made.
    """
    same = [replace(plan, alike=True, rehearsal=0, warmup=0, rounds=1) for plan in plans]
    with precision(same[0].precision):
        entries = carry_out(same, who, tell)
    rows: list[Row] = []
    for plan in same:
        here = [entry for entry in entries if entry.plan is plan]
        workload = Workload(plan)
        end = next(entry.timing.model for entry in here if entry.timing is not None and entry.name == BARE)
        rows += [_checked(entry, workload, end) for entry in here]
    return rows


def _checked(entry: Entry, workload: Workload, end: Tensor) -> Row:
    """A contender's steps and its distance from where the bare loop ended."""
    row = {
        "case": workload.case.name,
        "framework": entry.name,
        "precision": workload.plan.precision,
        "steps": None,
        "steps_wanted": workload.wanted_steps,
        "difference": None,
        "note": entry.note,
    }
    if entry.timing is None:
        return row
    gap = float((entry.timing.model - end).abs().max() / (end - workload.net.initial()).abs().max())
    return {**row, "steps": entry.timing.steps, "difference": float(f"{gap:.2g}")}


# ------------------------------------------------------------------------------------------------ picture


def draw(rows: Sequence[Row], path: Path) -> Path:
    """A bar per framework and case: milliseconds per round, beside it how many times Motley's."""
    from motley.report.pictures import drawing, save

    cases = list(dict.fromkeys(row["case"] for row in rows))
    with drawing(font_size=10) as plt:
        size = (4.8 * len(cases), 3.4)
        figure, panels = plt.subplots(1, len(cases), figsize=size, layout="constrained", squeeze=False)
        for axes, case in zip(panels[0], cases, strict=True):
            _bars(axes, [row for row in rows if row["case"] == case and row["ms_per_round"] is not None][::-1])
            axes.set_title(case, loc="left")
        figure.supxlabel(
            f"{rows[0]['device']}, {rows[0]['precision']}; in brackets: times as long as Motley",
            fontsize=9,
            color="0.4",
        )
        return save(figure, path, 150)


def _bars(axes: Any, rows: Sequence[Row]) -> None:
    from motley.report.plots import COLOURS

    colours = [COLOURS[0] if row["framework"].startswith("motley ") else "0.7" for row in rows]
    times = [row["ms_per_round"] for row in rows]
    bars = axes.barh([row["framework"] for row in rows], times, color=colours)
    axes.bar_label(bars, [_label(row) for row in rows], padding=3, fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(10 ** math.floor(math.log10(min(times) / 2)), 12 * max(times))  # room for the labels
    axes.set_xlabel("ms per round")


def _label(row: Row) -> str:
    time, ratio = row["ms_per_round"], row["ratio_to_motley"]
    return _short(time) + (f" ({_short(ratio)}x)" if ratio is not None else "")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
