"""Any nn.Module as pure functions of a flat vector."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from motley.core.errors import DataError
from motley.core.network import Network

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


class Whole(nn.Module):
    """Without a method `features`: they are caught at the head. Its `classifier` and `features` are modules."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
        self.classifier = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.features(x))
        return out


class Halves(nn.Module):
    """With a method `features`."""

    classifier = ("middle", "out")

    def __init__(self, whole: Whole) -> None:
        super().__init__()
        self.body, self.middle, self.out = whole.features[0], whole.classifier[0], whole.classifier[2]

    def features(self, x: Tensor) -> Tensor:
        inner: Tensor = self.middle(self.body(x).tanh()).relu()
        return inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.features(x))
        return out


def test_both_ways_to_find_the_features_agree() -> None:
    whole = Whole()
    one, two = Network(whole), Network(Halves(whole))
    flat = one.initial() + 0.1
    assert one.head == "classifier.2"
    assert two.classifier_layers == (1, 2)
    a, b = one(flat, X), two(flat, X)
    assert torch.equal(a.features, b.features)
    assert torch.equal(a.logits, b.logits)
    assert torch.equal(one.features(flat, X), a.features)
    assert torch.allclose(one.classify(flat, a.features), a.logits)
    assert (one.n_features, one.n_classes) == (3, 2)


def test_the_module_keeps_its_own_parameters() -> None:
    net = Network(Whole())
    before = net.initial()
    own = [id(p) for p in net.module.parameters()]
    net(before * 0 + 1, X)
    assert torch.equal(net.initial(), before)
    assert [id(p) for p in net.module.parameters()] == own


def test_an_exception_inside_the_model_restores_the_parameters() -> None:
    net = Network(Whole())
    before = net.initial()
    with pytest.raises(RuntimeError):
        net(before + 5, torch.zeros(2, 9))
    assert torch.equal(net.initial(), before)
    assert not net.module.get_submodule("classifier.2")._forward_pre_hooks


def test_vmap_and_gradients_over_clients() -> None:
    net = Network(Whole())
    flats = torch.stack([net.initial() + 0.05 * i for i in range(3)])

    def loss(flat: Tensor, x: Tensor) -> Tensor:
        return net(flat, x).logits.square().mean()

    xs = torch.stack([X, X + 1, X - 1])
    at_once = vmap(torch.func.grad(loss))(flats, xs)
    one_by_one = torch.stack([torch.func.grad(loss)(flat, x) for flat, x in zip(flats, xs, strict=True)])
    assert torch.allclose(at_once, one_by_one, atol=1e-6)


def test_a_network_survives_pickling() -> None:
    net = Network(Whole())
    copy = pickle.loads(pickle.dumps(net))
    flat = net.initial() + 0.1
    assert torch.equal(copy(flat, X).logits, net(flat, X).logits)
    assert (copy.size, copy.head, copy.n_features, copy.layout) == (net.size, net.head, net.n_features, net.layout)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Flatten(), "has no parameters"),
    ],
)
def test_what_cannot_be_trained_client_by_client_is_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Network(module)


def test_norms_without_running_statistics_and_silent_dropout_are_fine() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2))
    assert Network(module)(Network(module).initial(), X).logits.shape == (6, 2)
    quiet = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2), nn.Linear(3, 2)).eval()
    net = Network(quiet)
    assert torch.equal(net(net.initial(), X).logits, net(net.initial(), X).logits)
    Network(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)))


def test_unknown_layers_are_named() -> None:
    with pytest.raises(DataError, match=r"no layer 'top'; its layers are classifier\.0, classifier\.2, features\.0"):
        Network(Whole(), head="top")
    with pytest.raises(DataError, match="no layer 'tail'"):
        Network(Whole(), classifier=("tail",))


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 2)
        self.idle = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x)
        return out


def test_a_head_that_is_named_but_not_used_is_told() -> None:
    net = Network(Unused(), head="idle")
    with pytest.raises(DataError, match="does not use its layer 'idle'"):
        net(net.initial(), X)
    right = Network(Unused(), head="used")
    assert torch.equal(right(right.initial(), X).features, X)


def test_a_last_linear_layer_that_is_none_is_not_taken_for_the_head() -> None:
    net = Network(Unused())
    assert torch.equal(net.look(X).logits, net.module.used(X))  # type: ignore[operator]
    assert net.head is None
    assert not net.offers
    assert not net.classifier_layers


def test_models_without_a_linear_layer_are_fine() -> None:
    net = Network(nn.Sequential(nn.Conv1d(1, 2, 4), nn.Flatten()))
    assert net(net.initial(), X[:, None]).logits.shape == (6, 2)
    assert net.head is None
    assert net.offers == frozenset()
    for ask in (lambda: net.head_layer, lambda: net.n_features, lambda: net.n_classes):
        with pytest.raises(DataError, match="last"):
            ask()
