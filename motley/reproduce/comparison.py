"""The paper's numbers beside ours: means with intervals, differences, and whether the claims hold here."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from motley.report.significance import compare as paired
from motley.report.significance import signed_rank
from motley.reproduce.claims import Verdict, by_draw, interval, judge_all
from motley.reproduce.metrics import bounds, measure
from motley.reproduce.reproduction import Cell, Reproduction
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
class Against:
    """A row beside the baseline in one column, or over all that the paper has (column None)."""

    row: str
    column: str | None
    relative: float  # difference of the means in percent of the baseline's; over columns of the mean scores
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

    @property
    def counts(self) -> dict[str, int]:
        """How many claims hold, do not, and cannot be told, and the fewest seeds (and folds) behind one of them."""
        found = [claim.holds for claim in self.claims]
        return {
            "claims_hold": found.count(True),
            "claims_fail": found.count(False),
            "claims_open": found.count(None),
            "seeds_min": min((claim.seeds for claim in self.claims), default=0),
        }

    def as_json(self) -> dict[str, Any]:
        made = self.reproduction
        return {
            "name": made.name,
            "title": made.title,
            "paper": made.paper,
            "status": self.status,
            "quick": self.quick,
            "missing_runs": self.missing,
            **self.counts,
            "rows": [asdict(row) for row in self.rows],
            "claims": [asdict(claim) for claim in self.claims],
            "against": [asdict(one) for one in self.against],
        }


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
    rows += [row for metric in made.shares for cell in runs for row in _share(made, cell, metric, runs)]
    return Table(made, quick, runs, rows, judge_all(made, runs), missing, against(made, runs))


def against(made: Reproduction, runs: dict[Cell, list[Finished]]) -> list[Against]:
    """Every row beside the baseline, by the first metric: column by column, then over the columns of the paper."""
    if made.baseline is None:
        return []
    found: list[Against] = []
    for row in dict.fromkeys(cell.row for cell in runs):
        if row != made.baseline:
            columns = [_beside(made, made.baseline, cell, runs) for cell in runs if cell.row == row]
            seen = [one for one in columns if one is not None]
            found += [*(one.against for one in seen), *_over_columns(row, seen)]
    return found


class OneColumn(NamedTuple):
    """A row beside the baseline in one column, and what an average over columns needs of it."""

    against: Against
    in_paper: bool
    own: float  # means
    base: float
    scaled: list[float]  # differences as shares of the baseline's mean, one per seed and fold


def _beside(made: Reproduction, baseline: str, cell: Cell, runs: dict[Cell, list[Finished]]) -> OneColumn | None:
    metric, base_cell = made.metrics[0], Cell(baseline, cell.column)
    base, own = by_draw(metric, runs.get(base_cell, [])), by_draw(metric, runs[cell])
    both = base.keys() & own.keys()
    if not both:
        return None
    _, one = paired({baseline: base, cell.row: own}, baseline)
    mean = one.mean - one.difference  # the baseline's
    return OneColumn(
        Against(cell.row, cell.column, round(one.relative, 4), one.p, one.pairs),
        made.paper_value(base_cell, metric) is not None,
        one.mean,
        mean,
        [(own[draw] - base[draw]) / mean for draw in both],
    )


def _over_columns(row: str, seen: list[OneColumn]) -> list[Against]:
    """The means over columns of the paper beside each other, with a test over all their pairs."""
    columns = [one for one in seen if one.in_paper]
    if not columns:
        return []
    base = sum(one.base for one in columns)
    average = 100.0 * (sum(one.own for one in columns) - base) / base
    scaled = [difference for one in columns for difference in one.scaled]
    return [Against(row, None, round(average, 4), signed_rank(scaled, [0.0] * len(scaled)), len(scaled))]


def _row(made: Reproduction, cell: Cell, metric: str, runs: list[Finished]) -> Row:
    values = [value for run in runs if (value := measure(metric, run)) is not None]
    mean = statistics.fmean(values) if values else None
    low, high = interval(values, bounds(metric))
    paper = made.paper_value(cell, metric)
    difference = None if mean is None or paper is None else round(mean - paper, 4)
    return Row(
        row=str(cell),
        metric=metric,
        paper=paper,
        measured=_rounded(mean),
        low=_rounded(low),
        high=_rounded(high),
        seeds=len(values),
        device=_devices(runs),
        difference=difference,
    )


def _share(made: Reproduction, cell: Cell, metric: str, runs: dict[Cell, list[Finished]]) -> list[Row]:
    """A place as a share of another, seed by seed: what compares where the paper has units of its own."""
    base = made.base_of(cell, metric)
    if base is None or base not in runs:
        return []
    values = _ratios(by_draw(metric, runs[cell]), by_draw(metric, runs[base]))
    mean = statistics.fmean(values) if values else None
    low, high = interval(values)
    paper = made.paper_share(cell, base, metric)
    return [
        Row(
            row=str(cell),
            metric=f"{metric}, share of {base.row}",
            paper=_rounded(paper),
            measured=_rounded(mean),
            low=_rounded(low),
            high=_rounded(high),
            seeds=len(values),
            device=_devices(runs[cell]),
            difference=None if mean is None or paper is None else round(mean - paper, 4),
        )
    ]


def _ratios(own: dict[tuple[int, int], float], other: dict[tuple[int, int], float]) -> list[float]:
    return [own[draw] / other[draw] for draw in sorted(own.keys() & other.keys()) if other[draw]]


def _devices(runs: list[Finished]) -> str | None:
    return ", ".join(sorted({run.device for run in runs if run.device})) or None


def _rounded(value: float | None) -> float | None:
    """Four decimals, or four digits of what is near 0."""
    return None if value is None else round(value, 4) if abs(value) >= 0.1 else float(f"{value:.4g}")
