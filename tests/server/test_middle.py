"""Trimmed mean, median and sparse uploads as parts of a method."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from motley.client.narrow import narrow_networks
from motley.core.errors import ConflictError, InputError
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import Part, compose
from motley.core.types import Mine, Round
from motley.methods import make_method
from motley.server.aggregate import plain_mean
from motley.server.middle import median, trimmed_mean
from motley.server.sparse import largest_changes, sparse_ternary, ternarised
from tests import tiny

NET = Network(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)))  # two layers of one weight


def merged(part: Part, delta: Tensor, trained: Tensor | None = None, weights: list[float] | None = None) -> list[float]:
    """What a part makes of changes [K, 2] when the model is (10, 20)."""
    updates = tiny.updates_of(delta, torch.ones_like(delta) if trained is None else trained)
    given = torch.ones(len(delta)) if weights is None else torch.tensor(weights)
    rnd = Round(1, Key.root(0), len(delta), 0.0)._replace(net=NET)
    made: list[float] = tiny.filled(part.merge)(None, rnd, torch.tensor([10.0, 20.0]), updates, given).tolist()
    return made


DELTA = torch.tensor([[1.0, -1.0], [2.0, -2.0], [3.0, -3.0], [1000.0, -4.0]])


def test_by_hand() -> None:
    assert merged(median(), DELTA) == [12.5, 17.5]
    assert merged(trimmed_mean(share=0.25), DELTA) == [12.5, 17.5]
    assert merged(trimmed_mean(share=0.2), DELTA) == [10.0 + 251.5, 17.5], "a fifth of four clients is nobody"


def test_each_layer_is_merged_over_those_who_trained_it() -> None:
    trained = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    assert merged(median(), DELTA, trained) == [12.0, 20.0]


def test_a_client_without_weight_does_not_count_and_other_weights_are_alike() -> None:
    assert merged(median(), DELTA, weights=[5.0, 1.0, 0.5, 0.0]) == [12.0, 18.0]


def test_one_bad_client_of_five_cannot_pull_the_model_away() -> None:
    honest = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    attacked = honest.clone()
    attacked[0] = torch.tensor([1e6, -1e6])
    for part in (median(), trimmed_mean(share=0.2)):
        before, after = merged(part, honest), merged(part, attacked)
        assert max(abs(a - b) for a, b in zip(before, after, strict=True)) < 2.0


def test_without_trimming_it_is_the_plain_mean() -> None:
    ours, plain = (tiny.run(compose(part), rounds=2).params for part in (trimmed_mean(share=0.0), plain_mean()))
    assert torch.allclose(ours, plain, atol=1e-6)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match=r"share=0\.5; it must be a number from 0 to 0\.499"):
        trimmed_mean(share=0.5)
    with pytest.raises(ConflictError, match="'median' and 'trimmed_mean' both decide how updates become one model"):
        compose(median(), trimmed_mean())
    with pytest.raises(ConflictError, match="unequal widths"):
        compose(median(), narrow_networks(widths=[0.5]))


def test_only_the_largest_changes_go_up_and_are_charged() -> None:
    part = largest_changes(share=0.3)
    encode, decode = tiny.filled(part.encode), tiny.filled(part.decode)
    change = torch.tensor([0.1, -5.0, 0.0, 2.0, -0.3, 0.2, 0.4, 3.0, 0.0, 0.1])
    sent = encode(None, None, change)
    assert sent["places"].tolist() == [1, 3, 7]
    assert decode(sent).tolist() == [0, -5, 0, 2, 0, 0, 0, 3, 0, 0]
    result = tiny.run(compose(part), rounds=1, cohort=4, fleet=tiny.uneven_fleet().with_(fortune=()))
    size = len(result.params)
    assert result.records[0].bytes_up == 4 * 8 * math.ceil(0.3 * size)


@pytest.mark.parametrize(
    ("change", "sent"),
    [
        ([0.1, -5.0, 0.0, 2.0, -0.3, 0.2, 0.4, 3.5, 0.0, 0.1], [0, -3.5, 0, 3.5, 0, 0, 0, 3.5, 0, 0]),
        ([0.0, -6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0, -2, 0, 0, 0, 0, 0, 0, 0, 0]),  # nothing else moved
    ],
)
def test_a_ternary_upload_says_where_and_which_way(change: list[float], sent: list[float]) -> None:
    part = sparse_ternary(share=0.3)
    encode, decode = tiny.filled(part.encode), tiny.filled(part.decode)
    wanted = torch.tensor(change)
    payload = encode(None, Mine("sparse_ternary", None, None, wanted, {}), wanted)
    assert decode(payload).tolist() == pytest.approx(sent)
    assert torch.equal(ternarised(wanted, 0.3), decode(payload))
    assert sum(leaf.numel() * leaf.element_size() for leaf in payload.values()) == 4 * 3 + 4


def test_sparse_uploads_go_with_robust_merges_on_every_executor() -> None:
    method = compose(make_method("fedprox"), largest_changes(share=0.5), median())
    one_by_one, at_once = (tiny.run(method, rounds=2, executor=executor).params for executor in ("loop", "batched"))
    assert torch.allclose(one_by_one, at_once, atol=1e-4)
