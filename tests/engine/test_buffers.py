"""The fixed memory of captured graphs: what is loaded lies there, wherever it came from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from motley.client.problems import Classification
from motley.core.types import Client, Facts
from motley.engine.batched.buffers import Buffers
from motley.engine.batched.minibatches import Table
from tests import tiny

K, S, B = 3, 4, 2


def content(seed: int, masked: bool) -> tuple[Any, ...]:
    """Clients that share their start, with a momentum, minibatches and counts, all drawn anew."""
    draw = torch.Generator().manual_seed(seed)
    net = tiny.network(tiny.data())
    start = torch.randn(net.size, generator=draw)
    numbers = torch.rand(9, K, generator=draw)
    whole = torch.randint(100, (5, K), generator=draw)
    facts = Facts(whole[0], whole[1], numbers[0], torch.rand(K, tiny.CLASSES, generator=draw), *numbers[1:])
    c = Client(
        params=start.expand(K, -1),
        start=start,
        trained=torch.ones(K, net.n_layers),
        facts=facts,
        key=whole[2],
        epoch=torch.zeros(K),
        step=torch.zeros(K, dtype=torch.int64),
        loss=torch.zeros(K),
        down={"part": {"seen": torch.rand(5, generator=draw)}},
        own={},
        notes={},
        dials={},
        net=net,
        problem=Classification(),
        batch_size=B,
    )
    mask = torch.rand(S, K, B, generator=draw) if masked else None
    rows = torch.randint(50, (S, K, B), generator=draw)
    return c, {"velocity": torch.rand(K, net.size, generator=draw)}, Table(rows, mask), whole[3], whole[4]


@pytest.mark.parametrize("masked", [False, True])
def test_loading_replaces_everything(masked: bool) -> None:
    buffers = Buffers(content(1, masked), capacity=6)
    c, state, table, steps, per_epoch = fresh = content(2, masked)
    buffers.s.fill_(3)
    buffers.load(fresh)
    kept = (buffers.c, buffers.state, buffers.rows[:S], buffers.steps, buffers.per_epoch)
    for old, new in zip(tree_leaves(kept), tree_leaves((c, state, table.rows, steps, per_epoch)), strict=True):
        assert torch.equal(old, new)
    assert (buffers.mask is None) == (not masked)
    if buffers.mask is not None and table.mask is not None:
        assert torch.equal(buffers.mask[:S], table.mask)
    assert buffers.s.item() == 0


def test_what_is_loaded_is_a_copy_at_places_that_stay() -> None:
    buffers = Buffers(content(1, True), capacity=6)
    places = [leaf.data_ptr() for leaf in tree_leaves((buffers.c, buffers.state))]
    fresh = content(2, True)
    buffers.load(fresh)
    fresh[0].start.zero_()
    assert places == [leaf.data_ptr() for leaf in tree_leaves((buffers.c, buffers.state))]
    assert bool(buffers.c.params.abs().sum() > 0)
