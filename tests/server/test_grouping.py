"""Groups of clients by their classes, by hand: GANDALF's Algorithms 2 and 4."""

from __future__ import annotations

import numpy as np
import pytest

from motley.core.keys import Key
from motley.server.grouping import alike, at_random, divergence_from_uniform, towards_uniform, unevenness


def table(*rows: list[float]) -> np.ndarray:
    return np.array(rows, float)


def test_the_divergence_by_hand() -> None:
    found = divergence_from_uniform(table([1, 1], [2, 0], [0, 0], [3, 1]))
    by_hand = 0.75 * np.log(0.75 / 0.5) + 0.25 * np.log(0.25 / 0.5)
    np.testing.assert_allclose(found, [0.0, np.log(2), np.log(2), by_hand])


def test_algorithm_4_by_hand() -> None:
    """Two groups of two: client 3 is nearest to uniform and begins; 4 and 1 stays at KL 0.131, others are farther."""
    counts = table([4, 0], [0, 4], [4, 0], [3, 1])
    assert towards_uniform(counts, 2) == [[3, 1], [0, 2]]


def test_algorithm_4_takes_the_first_of_equals_and_fills_up_to_the_ceiling() -> None:
    counts = table([4, 0, 0], [4, 0, 0], [0, 4, 0], [0, 4, 0], [0, 0, 4])
    assert towards_uniform(counts, 2) == [[0, 2, 4], [1, 3]]
    assert towards_uniform(counts, 1) == [[0, 2, 4, 1, 3]]
    assert towards_uniform(counts, 5) == [[0], [1], [2], [3], [4]]


def test_algorithm_4_never_makes_more_groups_than_asked_for() -> None:
    for n in range(1, 12):
        counts = Key.root(n).generator().integers(0, 5, (n, 3)).astype(float)
        for groups in range(1, n + 1):
            made = towards_uniform(counts, groups)
            assert len(made) <= groups
            assert sorted(client for group in made for client in group) == list(range(n))
            assert max(map(len, made)) == -(-n // groups)


def test_algorithm_2_groups_the_alike() -> None:
    """Shares count, not sizes: the fourth client has ten times the samples of the first."""
    counts = table([5, 0, 1], [0, 6, 0], [6, 0, 1], [50, 0, 9], [0, 3, 0], [0, 7, 1])
    found = sorted(map(sorted, alike(counts, 2, Key.root(0))))
    assert found == [[0, 2, 3], [1, 4, 5]]


def test_algorithm_2_gives_up_with_the_most_even_grouping() -> None:
    counts = table([1, 0], *[[0, 1]] * 7)
    with pytest.warns(UserWarning, match=r"After 3 tries of k-means the groups still differ by 6 clients"):
        found = alike(counts, 2, Key.root(0), tries=3)
    assert sorted(map(len, found)) == [1, 7]
    assert unevenness(found) == 6


def test_algorithm_2_is_the_same_every_time() -> None:
    counts = Key.root(4).generator().integers(0, 9, (12, 4)).astype(float)
    assert alike(counts, 3, Key.root(1)) == alike(counts, 3, Key.root(1))


def test_random_groups_are_even() -> None:
    made = at_random(11, 3, Key.root(2))
    assert sorted(map(len, made)) == [3, 4, 4]
    assert sorted(client for group in made for client in group) == list(range(11))
    assert made != at_random(11, 3, Key.root(3))
