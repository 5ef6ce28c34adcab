"""Random keys: the same on integers and tensors, independent of each other, and statistically sound."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from motley.core.keys import Key, bits, fold_in, normal, permutation, uniform

SEEDS = st.integers(0, 2**64 - 1)


@given(SEEDS, st.integers(-(2**62), 2**62))
def test_folding_is_the_same_on_integers_and_tensors(seed: int, word: int) -> None:
    key = Key.root(seed)
    assert int(fold_in(key.tensor(), word)) == int(key.fold(word).tensor())
    assert int(fold_in(key.tensor(), torch.tensor(word))) == int(key.fold(word).tensor())


def test_draws_are_the_same_under_vmap() -> None:
    keys = torch.stack([Key.root(seed).tensor() for seed in range(5)])
    for draw in (
        lambda key: uniform(key, (3, 2)),
        lambda key: normal(key, (3, 2)),
        lambda key: permutation(key, 9),
        lambda key: bits(key, torch.arange(4)),
        lambda key: fold_in(key, 7),
    ):
        one_by_one = torch.stack([draw(key) for key in keys])
        assert torch.equal(vmap(draw)(keys), one_by_one)
    assert torch.equal(permutation(keys, 9), vmap(lambda key: permutation(key, 9))(keys))


def test_order_and_words_matter() -> None:
    root = Key.root(1)
    assert root.fold("a", "b") == root.fold("a").fold("b")
    assert root.fold("a", "b") != root.fold("b", "a")
    assert root.fold(1, 2) != root.fold(2, 1)
    assert root.fold("1") != root.fold(1)
    assert Key.root(1) != Key.root(2)
    assert root.fold("batches") == Key.root(1).fold("batches")


def test_no_two_purposes_share_a_key() -> None:
    """Also where words and seeds are the same small numbers."""
    found = {
        Key.root(seed).fold(*words).value
        for seed in range(40)
        for words in [(), *((a,) for a in range(40)), *((a, b) for a in range(8) for b in range(8))]
    }
    assert len(found) == 40 * (1 + 40 + 64)


def test_seeds_fix_the_numbers_for_good() -> None:
    """A change of these breaks the promise that a seed gives the same run in later versions."""
    assert Key.root(0).value == 0xDCDA3B3183E6F117
    key = Key.root(7).fold("client", 3, 12)
    assert key.value == 0x2F39AF530D36BD49
    assert permutation(key.tensor(), 8).tolist() == [3, 0, 5, 2, 6, 1, 7, 4]


def test_uniform_is_uniform() -> None:
    x = uniform(Key.root(3).tensor(), (100_000,))
    assert float(x.min()) >= 0
    assert float(x.max()) < 1
    counts = torch.histc(x, 50, 0, 1)
    chi2 = float(((counts - 2000) ** 2 / 2000).sum())
    assert chi2 < 86  # 49 degrees of freedom, p = 0.001


def test_normal_has_the_moments_of_a_normal() -> None:
    x = normal(Key.root(4).tensor(), (200_000,)).double()
    assert abs(float(x.mean())) < 0.01
    assert float(x.var()) == pytest.approx(1, abs=0.015)
    assert float((x**3).mean()) == pytest.approx(0, abs=0.05)
    assert float((x**4).mean()) == pytest.approx(3, abs=0.1)
    assert float((x.abs() > 1.96).double().mean()) == pytest.approx(0.05, abs=0.003)
    assert torch.isfinite(x).all()


def test_every_permutation_is_equally_likely() -> None:
    keys = torch.stack([Key.root(5).fold(i).tensor() for i in range(12_000)])
    orders = permutation(keys, 4)
    assert torch.equal(orders.sort(-1).values, torch.arange(4).expand(12_000, 4))
    code = (orders * torch.tensor([64, 16, 4, 1])).sum(-1)
    counts = torch.unique(code, return_counts=True)[1].float()
    assert len(counts) == math.factorial(4)
    assert float(((counts - 500) ** 2 / 500).sum()) < 49.7  # 23 degrees of freedom, p = 0.001


def test_neighbouring_keys_are_uncorrelated() -> None:
    rows = torch.stack([uniform(Key.root(6).fold("round", t).tensor(), (4000,)) for t in range(12)])
    correlation = torch.corrcoef(rows) - torch.eye(12)
    assert float(correlation.abs().max()) < 0.07
    inside = rows.reshape(-1)
    assert abs(float(torch.corrcoef(torch.stack([inside[:-1], inside[1:]]))[0, 1])) < 0.02


def test_generator_draws_follow_the_key() -> None:
    key = Key.root(8).fold("fleet")
    assert key.generator().random(5).tolist() == key.generator().random(5).tolist()
    assert key.generator().random(5).tolist() != key.fold(1).generator().random(5).tolist()
