"""Folding many words at once gives what `Key.fold` gives one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from motley.core.keys import Key, fold_each, uniform_each


@given(seed=st.integers(0, 2**64 - 1), words=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_agrees_with_fold(seed: int, words: list[int]) -> None:
    key = Key.root(seed)
    assert fold_each(key, np.array(words, np.int64)).tolist() == [key.fold(word).value for word in words]


def test_chunks_leave_no_seam() -> None:
    key, words = Key.root(1), np.arange(40_000)
    whole = fold_each(key, words)
    np.testing.assert_array_equal(whole[16_300:16_500], fold_each(key, words[16_300:16_500]))
    assert whole[-1] == key.fold(39_999).value
    assert len(np.unique(whole)) == len(words)


def test_uniform_is_uniform() -> None:
    u = uniform_each(Key.root(2), np.arange(200_000))
    assert 0.0 <= u.min() < u.max() < 1.0
    counts = np.histogram(u, bins=20, range=(0, 1))[0]
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 50.0  # chi-square with 19 degrees of freedom, far tail
