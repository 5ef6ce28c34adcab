"""Champions: compositions that no paper tried beside the methods of the paper whose benchmark it is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from motley.reproduce.claims import differences, interval
from motley.reproduce.comparison import Table
from motley.reproduce.metrics import measure
from motley.reproduce.reproduction import Cell
from motley.reproduce.results import Finished

BUDGET = ("rounds", "bytes_up", "virtual_time")


@dataclass(frozen=True)
class Beside:
    """A champion beside one method of the paper, over the seeds that both have."""

    benchmark: str
    champion: str
    paper_method: str
    metric: str
    champion_mean: float
    paper_mean: float
    difference: float
    low: float | None
    high: float | None
    seeds: int
    wins: int  # seeds in which the champion is ahead
    budget: dict[str, float]  # the champion's rounds, bytes and virtual time as shares of the paper method's


def beside(table: Table) -> list[Beside]:
    """The champion of a table beside each of the paper's methods, the strongest of these first."""
    made = table.reproduction
    if made.champion is None:
        return []
    found = []
    for column in made.columns:
        own = table.runs.get(Cell(made.champion.name, column), [])
        for row in made.rows:
            rival = table.runs.get(Cell(row, column), [])
            if row != made.champion.name and differences(made.metrics[0], own, rival):
                found.append(_beside(table, row, own, rival))
    return sorted(found, key=lambda one: -one.paper_mean)


def _beside(table: Table, row: str, own: list[Finished], rival: list[Finished]) -> Beside:
    made = table.reproduction
    assert made.champion is not None
    metric = made.metrics[0]
    common = {run.draw for run in own} & {run.draw for run in rival}
    own, rival = ([run for run in runs if run.draw in common] for runs in (own, rival))
    found = [*differences(metric, own, rival).values()]
    low, high = interval(found)
    return Beside(
        benchmark=made.champion.benchmark,
        champion=made.champion.name,
        paper_method=row,
        metric=metric,
        champion_mean=round(_mean(metric, own), 4),
        paper_mean=round(_mean(metric, rival), 4),
        difference=round(statistics.fmean(found), 4),
        low=_rounded(low),
        high=_rounded(high),
        seeds=len(found),
        wins=sum(value > 0 for value in found),
        budget=_budget(own, rival),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _budget(own: Sequence[Finished], rival: Sequence[Finished]) -> dict[str, float]:
    return {name: share for name in BUDGET if (share := _share(name, own, rival)) is not None}


def _mean(metric: str, runs: Sequence[Finished]) -> float:
    return statistics.fmean(value for run in runs if (value := measure(metric, run)) is not None)


def _share(name: str, own: Sequence[Finished], rival: Sequence[Finished]) -> float | None:
    """What champions spent of something in all, as a share of what the paper's method did."""
    spent, other = (sum(float(run.summary.get(name) or 0.0) for run in runs) for runs in (own, rival))
    return round(spent / other, 4) if other else None


def best_beside(tables: Sequence[Table]) -> list[Beside]:
    """Each benchmark's champion beside the method of the paper that is best here."""
    return [found[0] for table in tables if (found := beside(table))]


def champions_markdown(tables: Sequence[Table]) -> str:
    """The table of champions."""
    lines = [
        "# Champions",
        "",
        "Compositions that no paper tried, beside the method that is best here among all those of the paper whose "
        "benchmark it is: same data, same clients, same rounds, seed by seed.",
        "",
        "| benchmark | champion | paper's best | champion | paper's best | difference | 95 % interval | ahead in | "
        "bytes | virtual time |",
        "| --- | --- | --- | ---: | ---: | ---: | --- | --- | ---: | ---: |",
    ]
    for one in best_beside(tables):
        between = "" if one.low is None or one.high is None else f"{one.low:+.2f} to {one.high:+.2f}"
        budget = " | ".join(f"x {one.budget[name]:.2f}" if name in one.budget else "" for name in BUDGET[1:])
        lines.append(
            f"| {one.benchmark} | {one.champion} | {one.paper_method} | {one.champion_mean:.2f} | {one.paper_mean:.2f} "
            f"| {one.difference:+.2f} | {between} | {one.wins} of {one.seeds} seeds | {budget} |"
        )
    missing = sum(table.missing for table in tables)
    return "\n".join([*lines, "", *([f"{missing} runs are missing here.", ""] if missing else [])])


def champions_json(name: str, tables: Sequence[Table]) -> dict[str, Any]:
    """For machines: a row per benchmark, and all comparisons behind it."""
    states = {table.status for table in tables}
    return {
        "name": name,
        "title": "Champions: compositions that no paper tried",
        "status": states.pop() if len(states) == 1 else "partial",
        "missing_runs": sum(table.missing for table in tables),
        **_counts(tables),
        "rows": [asdict(one) for one in best_beside(tables)],
        "against": [asdict(one) for table in tables for one in beside(table)],
        "claims": [asdict(claim) for table in tables for claim in table.claims],
    }


def _counts(tables: Sequence[Table]) -> dict[str, int]:
    counted = [table.counts for table in tables]
    summed = {key: sum(one[key] for one in counted) for key in ("claims_hold", "claims_fail", "claims_open")}
    return {**summed, "seeds_min": min((one["seeds_min"] for one in counted), default=0)}
