"""Whether one method is better than another beyond chance: the Wilcoxon signed-rank test over folds and seeds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple, TypeVar

import numpy as np

from motley.core.errors import InputError

Place = TypeVar("Place", bound=Hashable)


class Comparison(NamedTuple):
    """Paired scores of two methods."""

    name: str
    pairs: int
    mean: float  # of the method
    difference: float  # mean of method - baseline
    relative: float  # difference in percent of the baseline's mean, as RADFed's Table III gives it
    p: float  # two-sided, of the hypothesis that differences lie evenly around 0

    @property
    def significant(self) -> bool:
        """At the level of 5 %, as in the paper."""
        return self.p < 0.05


def signed_rank(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test; pairs that are equal are left out, 1 if all are."""
    if len(first) != len(second) or not first:
        raise InputError(f"The signed-rank test needs as many scores of each, not {len(first)} and {len(second)}.")
    differences = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    differences = differences[differences != 0]
    if len(differences) == 0:
        return 1.0
    from scipy.stats import wilcoxon

    method = "exact" if len(differences) <= 50 and _untied(differences) else "approx"
    return float(wilcoxon(differences, method=method, correction=method == "approx").pvalue)


def _untied(differences: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bool:
    return len(np.unique(np.abs(differences))) == len(differences)


def compare(scores: Mapping[str, Mapping[Place, float]], baseline: str) -> list[Comparison]:
    """Every method against a baseline, on the folds and seeds that both have.

    ``scores`` maps a method to its scores, each under its place, such as (fold, seed).
    """
    if baseline not in scores:
        raise InputError(f"There are no scores of '{baseline}'; there are of: {', '.join(scores) or 'nothing'}.")
    base = scores[baseline]
    rows = []
    for name, own in scores.items():
        places = [place for place in own if place in base]
        if not places:
            raise InputError(f"'{name}' and '{baseline}' have no fold and seed in common.")
        first, second = [own[place] for place in places], [base[place] for place in places]
        difference = fmean(first) - fmean(second)
        relative = 100.0 * difference / fmean(second)
        rows.append(Comparison(name, len(places), fmean(first), difference, relative, signed_rank(first, second)))
    return rows
