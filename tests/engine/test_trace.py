"""Traced client functions give what the functions give."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from motley.engine.batched.trace import Traced, no_collection


def written_directly(x: Tensor) -> Tensor:
    mask = torch.ones(3)
    mask.mul_(2.0)
    return x * (torch.ones(3) * mask)


def written_through_a_view(x: Tensor) -> Tensor:
    mask = torch.ones(3)
    mask[1] = 0.0
    return x * (torch.ones(3) * mask)


def written_by_index(x: Tensor) -> Tensor:
    mask = torch.zeros(3)
    mask[[0, 2]] = 1.0
    return x * (2.0 * mask)


def written_through_views_of_views(x: Tensor) -> Tensor:
    table = torch.zeros(2, 3)
    table.view(6)[1:4].fill_(3.0)
    return x + table.sum(0)


def written_from_the_argument(x: Tensor) -> Tensor:
    table = torch.zeros(2, 3)
    filled = table.index_put((torch.tensor(1),), x)
    return filled.sum(0) * torch.arange(3.0)


@pytest.mark.parametrize(
    "function",
    [
        written_directly,
        written_through_a_view,
        written_by_index,
        written_through_views_of_views,
        written_from_the_argument,
    ],
)
def test_what_a_hook_writes_in_place_is_not_folded_away(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.arange(12.0).view(4, 3)
    expected = torch.stack([function(row) for row in x])
    traced = Traced(vmap(function), x, axes=(0,))
    for width in (4, 2, 4):
        assert torch.equal(traced(x[:width]), expected[:width])


def test_nothing_is_collected_while_a_graph_is_recorded() -> None:
    with no_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()  # as it was found
    finally:
        gc.enable()
