"""Wilcoxon's signed-rank test, by hand."""

from __future__ import annotations

import itertools

import pytest

from motley.core.errors import InputError
from motley.report.significance import compare, signed_rank


def exact(differences: list[float]) -> float:
    """All 2^n signs of the ranks: how many sums are as far from the middle as this one."""
    ranks = [sorted(map(abs, differences)).index(abs(d)) + 1 for d in differences]
    seen = sum(rank for rank, d in zip(ranks, differences, strict=True) if d > 0)
    middle = sum(ranks) / 2
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in itertools.product((0, 1), repeat=len(ranks))
    ]
    return sum(abs(total - middle) >= abs(seen - middle) for total in sums) / len(sums)


def test_small_samples_are_exact() -> None:
    for differences in ([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, -2.0, 3.0, 4.5, -0.5, 6.0], [-1.0, 2.0, -3.0]):
        assert signed_rank(differences, [0.0] * len(differences)) == pytest.approx(exact(differences))
    assert signed_rank([1, 2, 3, 4, 5], [0, 0, 0, 0, 0]) == pytest.approx(2 / 32)  # five folds alone cannot reach 5 %


def test_ties_and_zeros() -> None:
    assert signed_rank([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert signed_rank([1.0, 5.0, 6.0, 7.0], [1.0, 0.0, 0.5, 0.25]) == pytest.approx(exact([5.0, 5.5, 6.75]))
    assert signed_rank([2.0] * 15, [1.0] * 15) < 0.001
    with pytest.raises(InputError, match="as many scores of each, not 1 and 2"):
        signed_rank([1.0], [1.0, 2.0])


def test_compare() -> None:
    base = {(fold, seed): 0.8 + 0.01 * fold for fold in range(5) for seed in range(3)}
    better = {place: score * 1.02 + 0.0001 * place[1] for place, score in base.items()}
    rows = {row.name: row for row in compare({"fedavg": base, "radfed": better}, "fedavg")}
    assert rows["fedavg"].p == 1.0
    assert not rows["fedavg"].significant
    assert rows["radfed"].significant
    assert rows["radfed"].pairs == 15
    assert rows["radfed"].relative == pytest.approx(2.0, abs=0.05)
    with pytest.raises(InputError, match="no scores of 'fedprox'"):
        compare({"fedavg": base}, "fedprox")
    with pytest.raises(InputError, match="no fold and seed in common"):
        compare({"fedavg": base, "other": {("x", 1): 0.5}}, "fedavg")
