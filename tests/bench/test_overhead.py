"""The bench of the overhead measures the same work on both sides."""

from __future__ import annotations

import torch

from motley.bench import overhead
from motley.core.keys import Key
from motley.data.federated import FederatedData
from motley.data.partitioning import make_partition
from motley.nets.zoo import build
from motley.runtime.experiment import Given, prepare
from motley.runtime.launch import Run
from motley.runtime.recipe import load

TINY = overhead.Case("tiny", "mlp(hidden=[8])", 10, 3, 25)


def test_both_sides_give_the_same_model() -> None:
    dataset = overhead.images(75)
    data = FederatedData(dataset, make_partition("iid", dataset, 3, Key.root(0)))
    net = build(TINY.model, dataset.input_shape, 10, 0, Key.root(0))
    recipe = load({"clients": 3, "cohort": 3, "rounds": 1, "batch_size": 10, "lr": 0.01, "executor": "loop"})
    bare = overhead.Bare(net.module, data, recipe).round(1, [0, 1, 2])
    run = Run(prepare(recipe, Given(data=data, net=net)))
    run.bare_rounds()
    flat = torch.cat([value.reshape(-1) for value in bare])
    torch.testing.assert_close(run.model, flat, rtol=0, atol=1e-6)
    assert not torch.equal(flat, net.initial())


def test_rows() -> None:
    row = overhead.measure(TINY, repeats=1)
    assert set(row) >= {"case", "executor", "device", "ms_per_round", "ratio_to_bare_loop"}
    assert row["ms_per_round"] > 0
    assert row["ratio_to_bare_loop"] > 0
