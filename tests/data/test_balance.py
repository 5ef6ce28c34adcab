"""How classes are balanced, by hand: the example of GANDALF's Fig. 4, tau, surplus and gap."""

from __future__ import annotations

import numpy as np
import pytest

from motley.data.balance import amounts, divergence, farthest, lacking, shares, to_fill, wanted, without_surplus

# Fig. 4: four hearts and two stars, no triangle; one generator makes stars, the other triangles.
CLIENT = np.array([4.0, 2.0, 0.0])
GENERATORS = np.array([[0.0, 9.0, 0.0], [0.0, 0.0, 5.0]])
ALL = np.array([True, True, True])


def test_the_papers_example() -> None:
    lack = lacking(CLIENT, ALL)
    assert lack.tolist() == [0, 2, 4]
    assert amounts(GENERATORS, lack, 1.0).tolist() == [2, 4]
    assert amounts(GENERATORS, lack, 0.5).tolist() == [1, 2]


def test_amounts_of_mixed_generators_by_hand() -> None:
    """A = [[.5, 0], [.5, 1]]: its inverse is [[2, 0], [-1, 1]], so H = [2, 4] takes B = [4, 2]."""
    mixes = np.array([[1.0, 1.0], [0.0, 3.0]])
    assert amounts(mixes, np.array([2.0, 4.0]), 1.0).tolist() == [4, 2]


def test_nobody_makes_fewer_than_none() -> None:
    """H = [4, 0] would take B = [8, -4]."""
    mixes = np.array([[1.0, 1.0], [0.0, 3.0]])
    assert amounts(mixes, np.array([4.0, 0.0]), 1.0).tolist() == [8, 0]


def test_one_generator_for_two_classes_takes_the_least_squares() -> None:
    """A = [.5, .5]': its pseudo-inverse is [1, 1], so H = [2, 6] takes 8."""
    assert amounts(np.array([[3.0, 3.0]]), np.array([2.0, 6.0]), 1.0).tolist() == [8]


def test_a_class_that_nobody_has_is_not_lacked() -> None:
    assert lacking(CLIENT, np.array([True, True, False])).tolist() == [0, 2, 0]


def test_the_farthest_generators() -> None:
    mixes = np.array([[4.0, 2.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 7.0]])
    found = divergence(mixes, CLIENT)
    assert found[0] == pytest.approx(0.0)
    assert found[1] == pytest.approx(np.log(3))
    assert farthest(mixes, CLIENT, 3) == [2, 3, 1]
    assert shares(np.zeros(4)).tolist() == [0.25] * 4


def test_surplus_is_deleted_per_class() -> None:
    labels = np.array([1, 2, 1, 1, 0, 2])
    assert without_surplus(labels, np.array([0, 2, 5])).tolist() == [0, 1, 2, 5]
    assert wanted(np.array([0.0, 2.0, 5.0]), 0.5).tolist() == [0, 1, 2]


def test_gaps_are_filled_up_to_twice_the_source() -> None:
    assert to_fill(np.array([5, 5, 5, -1]), np.array([0, 1, 9, 9]), 2.0).tolist() == [0, 2, 5, 0]
