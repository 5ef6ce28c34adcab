"""Flat vectors and their table of layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from motley.core.errors import DataError
from motley.core.layout import Layout
from motley.core.network import Network


class Odd(nn.Module):
    """Registered head first, with a parameter of its own and a layer without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.tensor([2.0]))
        self.body = nn.Linear(4, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.scale * self.body(x).relu())
        return out


def test_round_trip() -> None:
    net = Network(Odd())
    flat = torch.arange(float(net.size))
    named = net.layout.unflatten(flat)
    assert torch.equal(net.layout.flatten(named), flat)
    assert {name: tuple(t.shape) for name, t in named.items()} == {
        "head.weight": (2, 3), "head.bias": (2,), "scale": (1,), "body.weight": (3, 4),
    }  # fmt: skip
    assert net.size == sum(p.numel() for p in net.module.parameters()) == 21


def test_slots_and_layers_cover_the_vector_without_gaps() -> None:
    layout = Layout.of(Odd())
    position = 0
    for slot in layout.slots:
        assert (slot.start, slot.stop) == (position, position + slot.size)
        assert layout.layers[slot.layer].start <= slot.start < slot.stop <= layout.layers[slot.layer].stop
        position = slot.stop
    assert position == layout.size
    assert layout.layer_sizes.tolist() == [layer.size for layer in layout.layers]
    assert [layer.order for layer in layout.layers] == list(range(layout.n_layers))


def test_expand_and_sum_per_layer() -> None:
    layout = Layout.of(Odd(), ("body", "", "head"))
    assert [layer.name for layer in layout.layers] == ["body", "", "head"]
    assert layout.expand(torch.tensor([1.0, 2.0, 3.0])).tolist() == [1.0] * 12 + [2.0] + [3.0] * 8
    both = layout.expand(torch.tensor([[1.0, 0, 0], [0, 0, 1.0]]))
    assert both.shape == (2, 21)
    assert layout.per_layer_sum(torch.ones(2, 21)).tolist() == [[12.0, 1.0, 8.0]] * 2
    assert layout.layer_of().tolist() == [0] * 12 + [1] + [2] * 8


def test_order_changes_the_place_and_not_the_function() -> None:
    module = Odd()
    plain, ordered = Network(module), Network(module, order=("body", "", "head"))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(plain(plain.initial(), x).logits, ordered(ordered.initial(), x).logits)
    assert torch.equal(ordered.initial()[:12], module.body.weight.detach().reshape(-1))
    assert ordered.layout.index("head") == 2
    with pytest.raises(KeyError):
        ordered.layout.index("tail")


@pytest.mark.parametrize("order", [("body", "head"), ("body", "", "head", "tail"), ("body", "", "", "head")])
def test_an_order_must_name_every_layer_once(order: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="must name each layer of the model once: , body, head"):
        Layout.of(Odd(), order)


class Tied(nn.Module):
    """The output layer uses the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.middle = nn.Linear(3, 3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.middle(self.embedding(x)).relu())
        return out


@pytest.mark.parametrize("order", [None, ("head", "middle", "embedding")])
def test_tied_weights_are_one_and_move_together(order: tuple[str, ...] | None) -> None:
    net = Network(Tied(), order=order)
    assert net.size == 15 + 12 + 5
    assert (net.n_features, net.n_classes) == (3, 5)
    flat = torch.randn(net.size, generator=torch.Generator().manual_seed(1), requires_grad=True)
    x = torch.tensor([0, 3, 4])
    out = net(flat, x)
    named = net.layout.unflatten(flat)
    tied = next(value for value in named.values() if value.shape == (5, 3))
    hidden = nn.functional.linear(tied[x], named["middle.weight"], named["middle.bias"]).relu()
    expected = hidden @ tied.T + named["head.bias"]
    assert torch.allclose(out.logits, expected)
    assert torch.allclose(net.classify(flat, out.features), expected)
    (ours,) = torch.autograd.grad(out.logits.square().sum(), flat)
    (theirs,) = torch.autograd.grad(expected.square().sum(), flat)
    assert torch.allclose(ours, theirs, atol=1e-5)
