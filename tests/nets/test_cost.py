"""Costs, counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from motley.core.errors import InputError
from motley.core.keys import Key
from motley.core.network import Network
from motley.nets import build, cost_of, flops, flops_of_mask

KEY = Key.root(0)


def test_mlp() -> None:
    cost = cost_of(build("mlp(hidden=[5, 3])", (4,), 2, 0, KEY), torch.zeros(7, 4))
    layers = (2.0 * 4 * 5, 2.0 * 5 * 3, 2.0 * 3 * 2)  # 40, 30, 12
    assert cost.forward == cost.backward_weight == cost.backward_input == layers
    assert cost.bytes == (4 * 25, 4 * 18, 4 * 8)
    assert cost.notes == ()
    assert flops(cost) == 82 + 82 + (30 + 12)  # nobody needs the gradient of the data
    assert flops(cost, 1) == 82 + (30 + 12) + 12
    assert flops(cost, 2) == 82 + 12
    assert flops(cost, 3) == 82
    assert flops_of_mask(cost, [1, 1, 0]) == 82 + (40 + 30) + (30 + 12)  # a frozen head still passes the gradient on
    assert flops_of_mask(cost, [0, 0, 0]) == 82


def test_convolution() -> None:
    cost = cost_of(build("cnn_ama", (1, 28, 28), 10, 0, KEY), torch.zeros(2, 1, 28, 28))
    assert cost.forward == (
        2.0 * 25 * 6 * 24 * 24,
        2.0 * 25 * 6 * 16 * 8 * 8,
        2.0 * 256 * 120,
        2.0 * 120 * 84,
        2.0 * 84 * 10,
    )
    assert flops(cost, 2) < 0.5 * flops(cost)


def test_lstm() -> None:
    cost = cost_of(build("char_lstm(embedding=3, hidden=5)", (7,), 11, 11, KEY), torch.zeros(2, 7, dtype=torch.int64))
    into, over = 2.0 * 7 * 4 * 5 * 3, 2.0 * 7 * 4 * 5 * 5
    assert cost.forward == (0.0, into + over, 2 * over, 2.0 * 5 * 11)
    assert cost.backward_input[1:3] == (into, over)
    assert cost.backward_weight[1:3] == (into + 2 * over, 3 * over)


def test_group_norm_and_strides() -> None:
    net = build("resnet_gn(width=2)", (3, 16, 16), 10, 0, KEY)
    cost = cost_of(net, torch.zeros(1, 3, 16, 16))
    names = [layer.name for layer in net.layout.layers]
    assert cost.forward[names.index("unit1.conv")] == 2.0 * 3 * 2 * 9 * 256
    assert cost.forward[names.index("unit1.norm")] == 5.0 * 2 * 256
    assert cost.forward[names.index("unit3.conv1")] == 2.0 * 4 * 4 * 9 * 64  # after one pooling
    assert cost.notes == ()


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def test_unknown_layers_are_estimated_with_a_sentence() -> None:
    shared = nn.Linear(4, 4)
    net = Network(nn.Sequential(Scale(), shared, nn.ReLU(), shared, nn.Linear(4, 2)))
    cost = cost_of(net, torch.zeros(3, 4))
    assert cost.forward == (8.0, 2 * 32.0, 16.0)  # a layer called twice counts twice
    assert len(cost.notes) == 1
    assert "'0' (Scale)" in cost.notes[0]


def test_hooks_are_removed() -> None:
    net = build("mlp", (4,), 2, 0, KEY)
    with pytest.raises(RuntimeError):
        cost_of(net, torch.zeros(1, 5))
    assert not any(m._forward_hooks for m in net.module.modules())


def test_wrong_masks_give_a_sentence() -> None:
    cost = cost_of(build("mlp", (4,), 2, 0, KEY), torch.zeros(1, 4))
    with pytest.raises(InputError, match="Between 0 and 3"):
        flops(cost, 4)
    with pytest.raises(InputError, match="has 2 entries"):
        flops_of_mask(cost, [1, 1])
