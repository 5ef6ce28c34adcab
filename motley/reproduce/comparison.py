"""The paper's numbers beside ours: means with intervals, differences, and whether the claims hold here."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from motley.report.significance import compare as paired
from motley.report.significance import signed_rank
from motley.reproduce.metrics import bounds, measure
from motley.reproduce.reproduction import Cell, Claim, Reproduction
from motley.reproduce.results import Finished, Results


@dataclass(frozen=True)
class Row:
    """One place of the table in one metric."""

    row: str
    metric: str
    paper: float | None
    measured: float | None
    low: float | None
    high: float | None
    seeds: int
    device: str | None
    difference: float | None


@dataclass(frozen=True)
class Verdict:
    """A claim: true, false, or null where the data cannot tell."""

    text: str
    holds: bool | None
    why: str


@dataclass(frozen=True)
class Against:
    """A row beside the baseline in one column, or over all that the paper has (column None)."""

    row: str
    column: str | None
    relative: float  # difference of the means in percent of the baseline's; over columns the mean of these
    p: float  # two-sided, of Wilcoxon's signed-rank test over seeds and folds
    pairs: int


@dataclass(frozen=True)
class Table:
    """Everything a reproduction shows."""

    reproduction: Reproduction
    quick: bool
    runs: dict[Cell, list[Finished]]
    rows: list[Row]
    claims: list[Verdict]
    missing: int
    against: list[Against] = field(default_factory=list)

    @property
    def status(self) -> str:
        if self.missing == 0:
            return "full"
        return "partial" if any(self.runs.values()) else "none"

    def as_json(self) -> dict[str, Any]:
        made = self.reproduction
        return {
            "name": made.name,
            "title": made.title,
            "paper": made.paper,
            "status": self.status,
            "quick": self.quick,
            "missing_runs": self.missing,
            "rows": [asdict(row) for row in self.rows],
            "claims": [asdict(claim) for claim in self.claims],
            "against": [asdict(one) for one in self.against],
        }


def interval(
    values: list[float], within: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float | None, float | None]:
    """The 95 % t-interval of a mean, cut to where values can lie; nothing to say with fewer than two values."""
    if len(values) < 2:
        return None, None
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return max(mean - half, within[0]), min(mean + half, within[1])


def build(made: Reproduction, results: Results, quick: bool = False, seeds: list[int] | None = None) -> Table:
    """The table from what is in ``results/`` now."""
    wanted = made.draws(quick, seeds)
    runs: dict[Cell, list[Finished]] = {}
    missing = 0
    for cell in made.cells(quick):
        found = [results.find(made.recipe_of(cell, draw, quick)) for draw in wanted]
        runs[cell] = [run for run in found if run is not None]
        missing += found.count(None)
    rows = [_row(made, cell, metric, found) for metric in made.metrics for cell, found in runs.items()]
    claims = [judge(made, claim, runs) for claim in made.claims if _present(made, claim, runs)]
    return Table(made, quick, runs, rows, claims, missing, against(made, runs))


def against(made: Reproduction, runs: dict[Cell, list[Finished]]) -> list[Against]:
    """Every row beside the baseline, by the first metric: column by column, then over the columns of the paper."""
    if made.baseline is None:
        return []
    metric = made.metrics[0]
    found: list[Against] = []
    for row in dict.fromkeys(cell.row for cell in runs if cell.row != made.baseline):
        whole: list[Against] = []
        scaled: list[float] = []
        for column in dict.fromkeys(cell.column for cell in runs if cell.row == row):
            base = _by_draw(metric, runs.get(Cell(made.baseline, column), []))
            own = _by_draw(metric, runs[Cell(row, column)])
            if not base.keys() & own.keys():
                continue
            _, one = paired({made.baseline: base, row: own}, made.baseline)
            found.append(Against(row, column, round(one.relative, 4), one.p, one.pairs))
            if made.paper_value(Cell(made.baseline, column), metric) is not None:
                whole.append(found[-1])
                mean = one.mean - one.difference  # the baseline's
                scaled += [(own[draw] - base[draw]) / mean for draw in base.keys() & own.keys()]
        if whole:
            average = statistics.fmean(one.relative for one in whole)
            p = signed_rank(scaled, [0.0] * len(scaled))
            found.append(Against(row, None, round(average, 4), p, len(scaled)))
    return found


def _by_draw(metric: str, runs: list[Finished]) -> dict[tuple[int, int], float]:
    return {run.draw: value for run in runs if (value := measure(metric, run)) is not None}


def _row(made: Reproduction, cell: Cell, metric: str, runs: list[Finished]) -> Row:
    values = [value for run in runs if (value := measure(metric, run)) is not None]
    mean = statistics.fmean(values) if values else None
    low, high = interval(values, bounds(metric))
    paper = made.paper_value(cell, metric)
    difference = None if mean is None or paper is None else round(mean - paper, 4)
    devices = sorted({run.device for run in runs if run.device})
    return Row(
        row=str(cell),
        metric=metric,
        paper=paper,
        measured=_rounded(mean),
        low=_rounded(low),
        high=_rounded(high),
        seeds=len(values),
        device=", ".join(devices) or None,
        difference=difference,
    )


def _rounded(value: float | None) -> float | None:
    """Four decimals, or four digits of what is near 0."""
    return None if value is None else round(value, 4) if abs(value) >= 0.1 else float(f"{value:.4g}")


# ------------------------------------------------------------------------------------------------ claims


def chains(made: Reproduction, claim: Claim) -> list[list[Cell]]:
    """The orders a claim states, greatest first; it holds where all of them do."""
    columns, rows = claim.columns or list(made.columns), claim.rows or list(made.rows)
    if claim.best is not None:
        others = claim.above or [row for row in made.rows if row != claim.best]
        return [[Cell(claim.best, column), Cell(row, column)] for column in columns for row in others]
    by_name = {str(cell): cell for cell in made.cells()}
    if all(name in made.rows for name in claim.order):
        return [[Cell(row, column) for row in claim.order] for column in columns]
    if all(name in made.columns for name in claim.order):
        return [[Cell(row, column) for column in claim.order] for row in rows]
    return [[by_name[name] for name in claim.order]]


def _present(made: Reproduction, claim: Claim, runs: dict[Cell, list[Finished]]) -> list[list[Cell]]:
    """The orders whose places are all in this table; the small version leaves some out."""
    return [chain for chain in chains(made, claim) if all(cell in runs for cell in chain)]


def judge(made: Reproduction, claim: Claim, runs: dict[Cell, list[Finished]]) -> Verdict:
    """Compares neighbours of every chain over the seeds that both have."""
    found: list[bool | None] = []
    reasons: list[str] = []
    in_order = total = 0
    for chain in _present(made, claim, runs):
        for greater, less in pairwise(chain):
            holds, difference, why = compare(claim.metric, runs[greater], runs[less], claim.margin)
            found.append(holds)
            if difference is not None:
                total += 1
                in_order += difference > -claim.margin
            if holds is not True:
                reasons.append(f"{greater} against {less}: {why}")
    verdict = False if False in found else None if None in found else True
    seen = f"{in_order} of {total} comparisons have their means in this order" if total else "nothing was measured"
    seen += f" within {claim.margin:g}" if total and claim.margin else ""
    shown = reasons[:3] + ([f"and {len(reasons) - 3} more"] if len(reasons) > 3 else [])
    return Verdict(claim.text, verdict, "; ".join([seen, *shown]))


def compare(
    metric: str, greater: list[Finished], less: list[Finished], margin: float = 0.0
) -> tuple[bool | None, float | None, str]:
    """Whether one is greater (but for ``margin``), by the 95 % t-interval of differences over common seeds and folds.

    Runs of one seed and fold share their data and their fleet, so differences are taken one by one.
    """
    one, other = _by_draw(metric, greater), _by_draw(metric, less)
    differences = [one[draw] - other[draw] for draw in sorted(one.keys() & other.keys())]
    if not differences:
        return None, None, "not measured"
    mean = statistics.fmean(differences)
    low, high = interval(differences)
    if low is None or high is None:
        return None, mean, f"difference {mean:+.2f} in one run of each"
    told = f"difference {mean:+.2f}, 95 % interval {low:+.2f} to {high:+.2f}"
    return (True if low > -margin else False if high < -margin else None), mean, told
