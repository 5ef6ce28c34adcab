"""Whether a paper's claims hold here: paired differences seed by seed, with Holm's correction within a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from motley.report.run_data import mean_and_interval
from motley.reproduce.metrics import measure
from motley.reproduce.reproduction import Cell, Claim, Reproduction
from motley.reproduce.results import Finished

LEVEL = 0.05
MOST = 200  # seeds that are thought of
Runs = dict[Cell, list[Finished]]


@dataclass(frozen=True)
class Verdict:
    """A claim: true, false, or null where the data cannot tell."""

    text: str
    holds: bool | None
    why: str
    seeds: int = 0  # the fewest runs behind one of its comparisons
    p: float | None = None  # of the claim or its opposite; corrected for the table's other claims
    needed: int | None = None  # seeds that are expected to decide it, where it is open and enough is known


class Compared(NamedTuple):
    """Two places beside each other: differences over the seeds and folds that both have."""

    holds: bool | None  # by the 95 % interval of these differences alone
    mean: float | None
    why: str
    pairs: int = 0
    above: float = 1.0  # one-sided p-value of "greater by more than the threshold"
    below: float = 1.0  # and of the opposite
    lead: float = 0.0  # the mean beyond the threshold
    spread: float = 0.0  # standard deviation of the differences


Found = list[tuple[Cell, Cell, Compared]]


def by_draw(metric: str, runs: Sequence[Finished]) -> dict[tuple[int, int], float]:
    """A metric of each run under its seed and fold."""
    return {run.draw: value for run in runs if (value := measure(metric, run)) is not None}


def interval(
    values: Sequence[float], within: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float | None, float | None]:
    """The 95 % t-interval of a mean, cut to where values can lie; nothing to say with fewer than two values."""
    if len(values) < 2:
        return None, None
    mean, half = mean_and_interval(values)
    assert half is not None
    return max(mean - half, within[0]), min(mean + half, within[1])


def one_sided(values: Sequence[float], threshold: float) -> tuple[float, float]:
    """p-values of "the mean lies above the threshold" and of "below" by the t-test; 1 and 1 with fewer than two."""
    if len(values) < 2:
        return 1.0, 1.0
    lead, error = statistics.fmean(values) - threshold, statistics.stdev(values) / math.sqrt(len(values))
    if error == 0.0:
        return (0.0, 1.0) if lead > 0 else (1.0, 0.0) if lead < 0 else (1.0, 1.0)
    from scipy.stats import t

    return float(t.sf(lead / error, len(values) - 1)), float(t.cdf(lead / error, len(values) - 1))


def differences(
    metric: str, greater: Sequence[Finished], less: Sequence[Finished], percent_of: str | None = None
) -> dict[tuple[int, int], float]:
    """Differences over common seeds and folds, one by one; in percent of either side where told."""
    one, other = by_draw(metric, greater), by_draw(metric, less)
    base = {"greater": one, "less": other}.get(percent_of or "")
    common = sorted(one.keys() & other.keys())
    if base is None:
        return {draw: one[draw] - other[draw] for draw in common}
    return {draw: 100.0 * (one[draw] - other[draw]) / base[draw] for draw in common if base[draw] != 0}


def compare(
    metric: str,
    greater: Sequence[Finished],
    less: Sequence[Finished],
    margin: float = 0.0,
    by: float = 0.0,
    percent_of: str | None = None,
) -> Compared:
    """Whether one is greater, by at least ``by`` and but for ``margin``, by the 95 % t-interval of differences.

    Runs of one seed and fold share their data and their fleet, so differences are taken one by one.
    """
    found = [*differences(metric, greater, less, percent_of).values()]
    return told_of(found, by - margin, " %" if percent_of else "")


def told_of(found: Sequence[float], threshold: float, unit: str = "") -> Compared:
    """What differences say of "greater by more than the threshold"."""
    if not found:
        return Compared(None, None, "not measured")
    mean, (low, high) = statistics.fmean(found), interval(found)
    if low is None or high is None:
        return Compared(None, mean, f"difference {mean:+.2f}{unit} in one run of each", 1)
    told = f"difference {mean:+.2f}{unit}, 95 % interval {low:+.2f} to {high:+.2f}"
    holds = True if low > threshold else False if high < threshold else None
    above, below = one_sided(found, threshold)
    return Compared(holds, mean, told, len(found), above, below, mean - threshold, statistics.stdev(found))


def chains(made: Reproduction, claim: Claim) -> list[list[Cell]]:
    """The orders a claim states, greatest first; it holds where all of them do."""
    columns = claim.columns or list(made.columns)
    if claim.best is not None:
        return [_down([claim.best, row], column) for column in columns for row in _others(made, claim)]
    if set(claim.order) <= made.rows.keys():
        return [_down(claim.order, column) for column in columns]
    if set(claim.order) <= made.columns.keys():
        return [_along(row, claim.order) for row in claim.rows or made.rows]
    return [_by_name(made, claim.order)]


def _others(made: Reproduction, claim: Claim) -> list[str]:
    """The rows that the best one is compared with."""
    return claim.above or [row for row in made.rows if row != claim.best]


def _by_name(made: Reproduction, names: Sequence[str]) -> list[Cell]:
    cells = {str(cell): cell for cell in made.cells()}
    return [cells[name] for name in names]


def _down(rows: Sequence[str], column: str) -> list[Cell]:
    return [Cell(row, column) for row in rows]


def _along(row: str, columns: Sequence[str]) -> list[Cell]:
    return [Cell(row, column) for column in columns]


def pairs_of(made: Reproduction, claim: Claim, runs: Runs) -> list[tuple[Cell, Cell]]:
    """Which places a claim compares, of those in this table; the small version leaves some out."""
    present = [chain for chain in chains(made, claim) if all(cell in runs for cell in chain)]
    return [pair for chain in present for pair in pairwise(chain)]


def judge_all(made: Reproduction, runs: Runs) -> list[Verdict]:
    """A verdict on every claim whose places are in this table."""
    stated = [claim for claim in made.claims if pairs_of(made, claim, runs)]
    found = [_compared(made, claim, runs) for claim in stated]
    chances = [_chances(claim, [one for _, _, one in own]) for claim, own in zip(stated, found, strict=True)]
    corrected = holm([min(1.0, 2.0 * min(both)) for both in chances])
    return [
        replace(_verdict(claim, own, both, p), needed=_needed(claim, own, LEVEL / len(stated)) if p >= LEVEL else None)
        for claim, own, both, p in zip(stated, found, chances, corrected, strict=True)
    ]


def seeds_needed(lead: float, spread: float, level: float) -> int | None:
    """How many seeds decide a comparison if mean and standard deviation stay as they are; None: more than `MOST`."""
    from scipy.stats import t

    if lead == 0.0:
        return None
    return next((n for n in range(2, MOST + 1) if abs(lead) > t.isf(level / 2, n - 1) * spread / math.sqrt(n)), None)


def _needed(claim: Claim, found: Found, level: float) -> int | None:
    """Seeds that are expected to decide a claim: all of its comparisons one way, or one of them the other."""
    known = [one for _, _, one in found if one.pairs > 1]
    if len(known) < len(found):
        return None
    wins = _each_needs([one for one in known if one.lead > 0], level)
    losses = _each_needs([one for one in known if one.lead <= 0], level / len(known))
    every, some = (losses, wins) if claim.somewhere else (wins, losses)
    return _first(some) if some else _last(every)


def _each_needs(found: list[Compared], level: float) -> list[int | None]:
    return [seeds_needed(one.lead, one.spread, level) for one in found]


def _first(seeds: list[int | None]) -> int | None:
    """The fewest that suffice for one of them."""
    return min((n for n in seeds if n is not None), default=None)


def _last(seeds: list[int | None]) -> int | None:
    """How many suffice for all of them; None if one is never decided."""
    certain = [n for n in seeds if n is not None]
    return max(certain) if len(certain) == len(seeds) else None


def _compared(made: Reproduction, claim: Claim, runs: Runs) -> Found:
    told = (claim.metric, claim.margin, claim.by, claim.percent_of)
    metric, margin, by, percent_of = told
    pairs = pairs_of(made, claim, runs)
    if claim.average:
        each = [differences(metric, runs[greater], runs[less], percent_of) for greater, less in pairs]
        return [(*pairs[0], told_of(_means(each), by - margin, " %" if percent_of else ""))]
    return [
        (greater, less, compare(metric, runs[greater], runs[less], margin, by, percent_of)) for greater, less in pairs
    ]


def _means(each: list[dict[tuple[int, int], float]]) -> list[float]:
    """The mean difference of every seed and fold that all comparisons have."""
    common = set.intersection(*(set(one) for one in each))
    return [statistics.fmean(one[draw] for one in each) for draw in sorted(common)]


def _chances(claim: Claim, found: list[Compared]) -> tuple[float, float]:
    """One-sided p-values of the claim and of its opposite.

    What holds everywhere is as sure as its weakest comparison; what holds somewhere may be so by chance in any.
    """
    above, below = [one.above for one in found], [one.below for one in found]
    if claim.somewhere:
        return min(1.0, len(found) * min(above)), max(below)
    return max(above), min(1.0, len(found) * min(below))


def holm(chances: Sequence[float]) -> list[float]:
    """p-values of several claims corrected by Holm's method, in the order given."""
    corrected = [0.0] * len(chances)
    largest = 0.0
    for place, i in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        largest = max(largest, min(1.0, (len(chances) - place) * chances[i]))
        corrected[i] = largest
    return corrected


def _verdict(claim: Claim, found: Found, chances: tuple[float, float], p: float) -> Verdict:
    holds = None if p >= LEVEL else chances[0] < chances[1]
    if claim.average:
        return Verdict(claim.text, holds, f"on average: {found[0][2].why}", found[0][2].pairs, round(p, 6))
    told = [f"p = {p:.2g} beside the table's other claims"] if holds is None and _alone(claim, found) else []
    why = "; ".join([_in_order(claim, found), *_reasons(claim, found), *told])
    return Verdict(claim.text, holds, why, min(one.pairs for _, _, one in found), round(p, 6))


def _in_order(claim: Claim, found: Found) -> str:
    """How many comparisons have their means as claimed."""
    measured = [one.mean for _, _, one in found if one.mean is not None]
    if not measured:
        return "not measured"
    in_order = sum(mean > claim.by - claim.margin for mean in measured)
    within = f" within {claim.margin:g}" if claim.margin else ""
    apart = f" and {claim.by:g} apart" if claim.by else ""
    return f"{in_order} of {len(measured)} comparisons have their means in this order{within}{apart}"


def _reasons(claim: Claim, found: Found) -> list[str]:
    """The first three comparisons that do not hold, or of all where a distance is claimed, and how many more."""
    failing = [one for one in found if one[2].holds is not True]
    shown = failing or (found if claim.by else [])
    reasons = [f"{greater} against {less}: {one.why}" for greater, less, one in shown]
    return reasons[:3] + ([f"and {len(reasons) - 3} more"] if len(reasons) > 3 else [])


def _alone(claim: Claim, found: Found) -> bool:
    """Whether the intervals alone would decide it."""
    each = [one.holds for _, _, one in found]
    return (any if claim.somewhere else all)(one is True for one in each) or (all if claim.somewhere else any)(
        one is False for one in each
    )
