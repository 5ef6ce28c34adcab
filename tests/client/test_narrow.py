"""Narrow networks: they compute what a small network would, train it alone, and are averaged where they exist."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from motley.client.narrow import narrow_networks, ordered_dropout
from motley.client.optimizer import SGD
from motley.client.trainer import Trained, Training, new_client, train
from motley.core.errors import InputError
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import Part, compose
from motley.core.types import Data, Facts, Round, Setting
from motley.nets.mlp import MLP
from motley.nets.width import first_width, layer_shares, mask_of
from motley.nets.zoo import build
from motley.runtime.launch import run as run_recipe
from motley.server.aggregate import layerwise_mean
from motley.server.method_server import MethodServer
from motley.server.staleness import cached_models, mix_by_staleness, mix_stale_models
from tests.client.test_freeze import facts
from tests.tiny import filled, updates_of


def narrow_copy(net: Network, flat: torch.Tensor, sizes: list[int], n_in: int, classes: int) -> MLP:
    """A small MLP with the first units of a large one."""
    small = MLP(n_in, tuple(sizes), classes)
    named = net.layout.unflatten(flat)
    with torch.no_grad():
        for name, p in small.named_parameters():
            p.copy_(named[name][tuple(slice(0, length) for length in p.shape)])
    return small


def test_a_masked_mlp_computes_what_the_small_one_does() -> None:
    net = Network(MLP(5, (8, 6), 3))
    flat, x = net.initial(), torch.randn(4, 5)
    small = narrow_copy(net, flat, [4, 3], 5, 3)
    out = net(flat * mask_of(net, torch.tensor(0.5)), x)
    assert torch.allclose(out.logits, small(x), atol=1e-6)
    kept = int(mask_of(net, torch.tensor(0.5)).sum())
    assert kept == sum(p.numel() for p in small.parameters())


@pytest.mark.parametrize("model", ["cnn_ama", "cnn_leaf(hidden=16)", "logistic"])
def test_channels_carry_their_pixels_into_linear_layers(model: str) -> None:
    """Units outside the width do not matter: whatever their weights, nothing flows through them."""
    net = build(model, (1, 28, 28), 10, 0, Key.root(0))
    mask = mask_of(net, torch.tensor(0.5))
    x = torch.randn(2, 1, 28, 28)
    flat = net.initial()
    inside = net(flat * mask, x).logits
    for layer, share in zip(net.layout.layers, layer_shares(net, 0.5).tolist(), strict=True):
        assert 0.2 < share <= 1.0, layer.name
    outputs = torch.autograd.functional.jacobian(lambda w: net(w * mask, x).logits.sum(), flat)
    assert bool((outputs[mask == 0] == 0).all())
    assert inside.shape == (2, 10)


def test_an_lstm_narrows_all_its_gates_alike() -> None:
    net = build("char_lstm(embedding=4, hidden=6)", (5,), 7, 7, Key.root(0))
    x = torch.randint(0, 7, (3, 5))
    mask = mask_of(net, torch.tensor(0.5))
    features = net(net.initial() * mask, x).features
    assert bool((features[:, 3:] == 0).all())
    assert bool((features[:, :3] != 0).any())


def test_widths_are_nested_and_full_width_is_everything() -> None:
    net = Network(MLP(5, (8, 6), 3))
    half, most = mask_of(net, torch.tensor(0.5)), mask_of(net, torch.tensor(0.75))
    assert bool((half <= most).all())
    assert bool((mask_of(net, torch.tensor(1.0)) == 1).all())
    assert float(first_width(net).max()) < 1.0


def test_models_that_do_not_form_a_chain_are_refused() -> None:
    with pytest.raises(InputError, match="cannot be made narrower"):
        first_width(Network(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))))
    with pytest.raises(InputError, match="shares above 0"):
        narrow_networks(widths=[0.0])


def trained(net: Network, part: Part | None, known: Facts, data: Data, seed: int = 3, momentum: float = 0.0) -> Trained:
    """A whole task of one client with one part, or with none."""
    training = Training(net, compose(*([part] if part else [])), SGD(momentum), 4)
    return train(training, new_client(training, net.initial(), known, Key.root(seed).tensor()), data)


def test_training_a_narrow_network_is_training_the_small_one() -> None:
    torch.manual_seed(1)
    net = Network(MLP(5, (8, 6), 3))
    data = Data(torch.randn(12, 5), torch.randint(0, 3, (12,)))
    known = facts(epochs=2.0, steps=6.0, n=12.0, capability=0.25)  # its root is 0.5
    wide = trained(net, narrow_networks(widths=[0.5, 1.0], scale=False), known, data, momentum=0.9)
    small = Network(narrow_copy(net, net.initial(), [4, 3], 5, 3))
    plain = trained(small, None, known, data, momentum=0.9)
    mask = mask_of(net, torch.tensor(0.5)) > 0
    assert torch.allclose(wide.payload[mask], plain.payload, atol=1e-6)
    assert bool((wide.payload[~mask] == 0).all())


def test_scaling_divides_hidden_outputs_by_the_width() -> None:
    """With one hidden layer, dividing its output by 0.5 doubles what the last layer sees, bias excepted."""
    net = Network(MLP(5, (8,), 3))
    data = Data(torch.randn(4, 5), torch.randint(0, 3, (4,)))
    known = facts(epochs=1.0, steps=1.0, n=4.0, capability=0.25)
    scaled = trained(net, narrow_networks(widths=[0.5]), known, data)
    module = narrow_copy(net, net.initial(), [4], 5, 3)
    loss = nn.functional.cross_entropy(module.head(module.fc1(data.x).relu() / 0.5), data.y)
    assert float(scaled.loss) == pytest.approx(float(loss.detach()), rel=1e-5)


def test_parameters_are_averaged_over_those_who_have_them() -> None:
    net = Network(MLP(1, (2,), 1))  # fc1: 2 weights, 2 biases; head: 2 weights, 1 bias
    params = torch.zeros(net.size)
    delta = torch.stack([torch.ones(net.size), 3 * torch.ones(net.size) * mask_of(net, torch.tensor(0.5))])
    found = updates_of(delta, torch.ones(2, 2))
    new = layerwise_mean(net, params, replace(found, width=torch.tensor([1.0, 0.5])), found.n)
    assert new.tolist() == [2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]


WORLD = {"fleet": "uniform_spread(ratio=6)", "clients": 8, "cohort": 4, "rounds": 3, "epochs": 2}


@pytest.mark.parametrize("part", ["narrow_networks(widths=[1.0])", "ordered_dropout(widths=[1.0])"])
def test_full_width_is_fedavg(part: str) -> None:
    given = {**WORLD, "model": "mlp(hidden=[8])"}
    narrow, plain = run_recipe("digits", **given, method=part), run_recipe("digits", **given, method="fedavg")
    assert torch.allclose(narrow.params, plain.params, atol=1e-6)
    assert narrow.summary["bytes_up"] == plain.summary["bytes_up"]


def test_narrow_networks_save_bytes_and_time() -> None:
    given = {**WORLD, "model": "mlp(hidden=[32, 16])"}
    plain = run_recipe("digits", **given, method="fedavg")
    for method in ("heterofl", "fjord"):
        narrow = run_recipe("digits", **given, method=method)
        assert narrow.summary["bytes_up"] < plain.summary["bytes_up"]
        assert narrow.summary["bytes_down"] < plain.summary["bytes_down"]
        assert narrow.summary["virtual_time"] < plain.summary["virtual_time"]


def test_ordered_dropout_draws_widths_up_to_the_devices_own() -> None:
    net = Network(MLP(5, (10,), 3))
    part = ordered_dropout(widths=[0.2, 0.6, 1.0], power=1.0)
    data = Data(torch.randn(4, 5), torch.randint(0, 3, (4,)))
    known = facts(epochs=1.0, steps=1.0, n=4.0, capability=0.7)
    seen = set()
    for seed in range(30):
        made = trained(net, part, known, data, seed)
        rows = net.layout.unflatten(made.payload)["fc1.weight"].abs().sum(1) > 0
        seen.add(int(torch.nonzero(rows).max()) + 1 if bool(rows.any()) else 0)
    assert max(seen) <= 6
    assert {width <= 2 for width in seen} == {True, False}


@pytest.mark.parametrize(("per", "several"), [("minibatch", True), ("epoch", False)])
def test_widths_are_drawn_anew_for_every_minibatch_or_epoch(per: str, several: bool) -> None:
    net = Network(MLP(5, (10,), 3))
    method = compose(ordered_dropout(widths=[0.2, 0.6, 1.0], power=1.0, per=per))
    training = Training(net, method, SGD(), 4)
    c = new_client(training, net.initial(), facts(epochs=1.0, steps=9.0, n=4.0, capability=1.0), Key.root(0).tensor())
    ((name, view),) = method.hooks("view")
    ones = torch.ones(net.size)
    seen = [int(view(c.with_(step=torch.tensor(i)), c.mine(name), ones).sum()) for i in range(20)]
    assert (len(set(seen)) > 1) is several
    with pytest.raises(InputError, match="per 'minibatch' or 'epoch'"):
        ordered_dropout(per="step")


@pytest.mark.parametrize("part", [mix_by_staleness(), mix_stale_models(alpha=0.3)])
def test_a_stale_narrow_model_leaves_what_it_has_not(part: Part) -> None:
    """The client has half of the hidden units and started from 0 while the global model went to 10."""
    net = Network(MLP(5, (8,), 3))
    params, inside = torch.full((net.size,), 10.0), mask_of(net, torch.tensor(0.5)) > 0
    delta = torch.where(inside, 1.0, 0.0)[None]
    found = updates_of(delta, torch.ones(1, 2), age=[3.0], start=torch.zeros(1, net.size).tolist(), n=[1.0])
    rnd = Round(4, Key.root(0), 1, 0.0, None, net)
    server = MethodServer(compose(part), Setting(net, params, 1))
    after = server.aggregate(rnd, params, replace(found, width=torch.tensor([0.5])))
    assert bool((after[~inside] == 10.0).all())
    assert bool((after[inside] < 10.0).all())


def test_the_cache_of_models_keeps_what_a_narrow_client_has_not() -> None:
    net = Network(MLP(5, (8,), 3))
    inside = mask_of(net, torch.tensor(0.5)) > 0
    part = cached_models()
    s = filled(part.init)(Setting(net, torch.full((net.size,), 2.0), 2))
    delta = torch.where(inside, 1.0, 0.0)[None]
    found = updates_of(delta, torch.ones(1, 2), age=[3.0], start=torch.zeros(1, net.size).tolist(), n=[1.0])
    rnd = Round(4, Key.root(0), 1, 0.0, None, net)
    s = filled(part.observe)(s, rnd, replace(found, width=torch.tensor([0.5])))
    assert torch.equal(s["models"][0], torch.where(inside, 1.0, 2.0))
