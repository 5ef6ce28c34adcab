"""Prototype feature augmentation, by hand: ReBaFL eq. 15-23."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from motley.client.prototypes import cyclic_targets, feature_sums, prototype_augmentation, transfer
from motley.core.errors import ConflictError
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import Method, compose
from motley.core.types import Batch, Client, Data, Round, Setting, Updates
from motley.methods import make_method
from motley.runtime.launch import Run
from tests.equations.small import client, small_experiment, small_network

NAME = "prototype_augmentation"


def hook(method: Method, which: str) -> Any:
    return dict(method.hooks(which))[NAME]


def test_transfer_by_hand() -> None:
    """Eq. 15: h = (2, 1) of class 0 becomes p_1 + lambda (h - p_0)."""
    prototypes = torch.tensor([[1.0, 1.0], [10.0, -4.0]])
    moved = transfer(torch.tensor([[2.0, 1.0]]), torch.tensor([0]), torch.tensor([1]), prototypes, 1.0)
    assert moved.tolist() == [[11.0, -4.0]]
    scaled = transfer(torch.tensor([[2.0, 1.0]]), torch.tensor([0]), torch.tensor([1]), prototypes, 0.5)
    assert scaled.tolist() == [[10.5, -4.0]]


def test_targets_go_round_the_classes_and_skip_padding() -> None:
    y = torch.zeros(6, dtype=torch.int64)
    assert cyclic_targets(Batch(y, y), 4).tolist() == [0, 1, 2, 3, 0, 1]
    mask = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    assert cyclic_targets(Batch(y, y, mask), 4)[mask > 0].tolist() == [0, 1, 2, 3, 0]


def sent(features: Tensor, y: list[int], net: Network) -> tuple[Tensor, Tensor]:
    members = torch.nn.functional.one_hot(torch.tensor(y), net.n_classes).float()
    return members.T @ features, members.sum(0)


def updates(sums: list[Tensor], counts: list[Tensor]) -> Updates:
    k = len(sums)
    one = torch.ones(k)
    return Updates(
        ids=torch.arange(k),
        round=torch.ones(k, dtype=torch.int64),
        age=torch.zeros(k),
        start=torch.zeros(k, 1),
        delta=torch.zeros(k, 1),
        trained=torch.ones(k, 1),
        n=one,
        loss=one,
        steps=one,
        epochs=one,
        lr=one,
        duration=one,
        extras={NAME: {"sums": torch.stack(sums), "counts": torch.stack(counts)}},
    )


def test_two_clients_prototypes_are_weighted_by_class_counts() -> None:
    """Eq. 23: client A has 3 samples of class 0 with mean (1, 1), client B 1 with mean (5, -3) and 2 of class 1."""
    a = torch.tensor([[3.0, 3.0], [0.0, 0.0], [0.0, 0.0]]), torch.tensor([3.0, 0.0, 0.0])
    b = torch.tensor([[5.0, -3.0], [4.0, 8.0], [0.0, 0.0]]), torch.tensor([1.0, 2.0, 0.0])
    rnd = Round(1, Key.root(0), 2, 0.0)
    before = {"prototypes": torch.full((3, 2), 9.0), "known": torch.ones(3)}
    for keep_absent, last, known in ((False, [0.0, 0.0], [1.0, 1.0, 0.0]), (True, [9.0, 9.0], [1.0, 1.0, 1.0])):
        method = compose(prototype_augmentation(keep_absent=keep_absent))
        after = hook(method, "observe")(before, rnd, updates([a[0], b[0]], [a[1], b[1]]).seen_by(NAME))
        assert after["prototypes"].tolist() == [[2.0, 0.0], [2.0, 4.0], last]
        assert after["known"].tolist() == known


def begun(method: Method, net: Network, params: Tensor, data: Data, down: dict[str, Tensor]) -> Client:
    c = client(method, net, params, [2.0, 2.0, 0.0, 0.0], down={NAME: down})
    begun: Client = hook(method, "begin")(c, c.mine(NAME), data)
    return begun


def setting(known: list[float]) -> tuple[Network, Tensor, Data, dict[str, Tensor]]:
    net = small_network()
    g = torch.Generator().manual_seed(5)
    data = Data(torch.randn(4, 6, generator=g), torch.tensor([0, 0, 1, 1]))
    mask = torch.tensor(known)
    down = {"prototypes": torch.randn(4, net.n_features, generator=g) * mask[:, None], "known": mask}
    return net, net.initial(), data, down


def test_local_prototypes_override_received_ones() -> None:
    """Eq. 18: own classes from the received extractor, the others as received."""
    net, params, data, down = setting([1.0, 1.0, 1.0, 0.0])
    c = begun(make_method("rebafl"), net, params, data, down)
    features = net.features(params, data.x)
    held = c.notes[NAME]["prototypes"]
    assert torch.allclose(held[0], features[:2].mean(0), atol=1e-6)
    assert torch.allclose(held[1], features[2:].mean(0), atol=1e-6)
    assert torch.equal(held[2], down["prototypes"][2])
    assert c.notes[NAME]["known"].tolist() == [1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("eps", [0.0, 0.2, 1.0])
def test_augmented_loss_by_hand(eps: float) -> None:
    """Eq. 16: classes 0..2 have prototypes, class 3 has none, so sample 3 is not augmented; prior 1/3 each."""
    net, params, data, down = setting([0.0, 0.0, 1.0, 0.0])
    method = compose(prototype_augmentation(mu=0.5, eps=eps))
    c = begun(method, net, params, data, down)
    batch = Batch(data.x, data.y)
    value = hook(method, "penalty")(c, c.mine(NAME), batch, net(params, data.x))
    h, p = net.features(params, data.x), c.notes[NAME]["prototypes"]
    prior = [(1 - eps) / 3 + eps / 4] * 3 + [eps / 4]
    total = 0.0
    for j, y in ((0, 0), (1, 0), (2, 1)):
        z = net.classify(params, p[j] + h[j] - p[y]).tolist()
        total += -math.log(prior[j] * math.exp(z[j]) / sum(q * math.exp(v) for q, v in zip(prior, z, strict=True)))
    assert float(value) == pytest.approx(0.5 * total / 3, rel=1e-4)


def test_samples_that_cannot_be_moved_stay_by_hand() -> None:
    """As above with eps = 0: sample 3 stays of class 1, so the prior is (1/4, 1/2, 1/4, 0) over four samples."""
    net, params, data, down = setting([0.0, 0.0, 1.0, 0.0])
    method = compose(prototype_augmentation(mu=0.5, eps=0.0, keep_unmoved=True))
    c = begun(method, net, params, data, down)
    value = hook(method, "penalty")(c, c.mine(NAME), Batch(data.x, data.y), net(params, data.x))
    h, p = net.features(params, data.x), c.notes[NAME]["prototypes"]
    prior = [0.25, 0.5, 0.25, 0.0]
    total = 0.0
    for feature, y in ((p[0] + h[0] - p[0], 0), (p[1] + h[1] - p[0], 1), (p[2] + h[2] - p[1], 2), (h[3], 1)):
        z = net.classify(params, feature).tolist()
        total += -math.log(prior[y] * math.exp(z[y]) / sum(q * math.exp(v) for q, v in zip(prior, z, strict=True)))
    assert float(value) == pytest.approx(0.5 * total / 4, rel=1e-4)


def test_augmentation_may_begin_later() -> None:
    """The term is 0 before its first round, and what it always is from then on."""
    net, params, data, down = setting([1.0, 1.0, 1.0, 1.0])
    found = []
    for first in (1, 2):
        method = compose(prototype_augmentation(first_round=first))
        c = begun(method, net, params, data, down)
        for number in (1, 2):
            now = c.with_(facts=c.facts._replace(round=torch.tensor(number)))
            found.append(hook(method, "penalty")(now, now.mine(NAME), Batch(data.x, data.y), net(params, data.x)))
    assert [float(value) for value in found] == [float(found[0]), float(found[0]), 0.0, float(found[0])]
    assert float(found[0]) > 0


def test_gradient_reaches_the_last_layer_only() -> None:
    """Eq. 19."""
    net, params, data, down = setting([1.0, 1.0, 1.0, 1.0])
    method = make_method("rebafl")
    c = begun(method, net, params, data, down)

    def loss(flat: Tensor) -> Tensor:
        now, batch = c.with_(params=flat), Batch(data.x, data.y)
        value: Tensor = hook(method, "penalty")(now, now.mine(NAME), batch, net(flat, data.x))
        return value

    slope = grad(loss)(params)
    head = net.layout.layers[net.layout.index(net.head)]
    assert (slope[: head.start] == 0).all()
    assert (slope[head.start : head.stop] != 0).any()


def test_report_sends_sums_of_the_trained_extractor() -> None:
    """Eq. 21, and nothing from a client that trained nothing."""
    net, params, data, down = setting([0.0, 0.0, 0.0, 0.0])
    method = make_method("rebafl")
    c = begun(method, net, params, data, down).with_(params=params + 0.1)
    _, up = hook(method, "report")(c, c.mine(NAME), data)
    sums, counts = sent(net.features(params + 0.1, data.x), [0, 0, 1, 1], net)
    assert torch.allclose(up["sums"], sums, atol=1e-5)
    assert torch.equal(up["counts"], counts)
    _, nothing = hook(method, "report")(c.with_(trained=torch.zeros(net.n_layers)), c.mine(NAME), data)
    assert float(nothing["counts"].sum()) == 0.0


def test_padding_changes_nothing_under_vmap_of_grad() -> None:
    """A stack of padded clients gives each one's own gradient."""
    net, params, data, down = setting([0.0, 1.0, 1.0, 0.0])
    method = make_method("rebafl(eps=0.0)+moon+fedavg")

    def slope(flat: Tensor, x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        samples, batch = Data(x, y, mask), Batch(x, y, mask)
        c = begun(method, net, params, samples, down)
        c = c.mine("model_contrastive").keep(c, params * 0.9)

        def loss(w: Tensor) -> Tensor:
            out = net(w, batch.x)
            now = c.with_(params=w)
            z = out.logits
            for name, each in method.hooks("logits"):
                z = each(now, now.mine(name), batch, z)
            value = Batch(batch.x, batch.y, batch.mask).mean(cross_entropy(z, batch.y, reduction="none"))
            for name, each in method.hooks("penalty"):
                value = value + each(now, now.mine(name), batch, out)
            return value

        return grad(loss)(flat)

    alone = slope(params * 1.1, data.x, data.y)
    pad_x, pad_y = torch.cat([data.x, torch.full((3, 6), 7.0)]), torch.cat([data.y, torch.tensor([3, 3, 0])])
    mask = torch.tensor([1.0] * 4 + [0.0] * 3)
    stacked = vmap(slope)(*(torch.stack([t] * 2) for t in (params * 1.1, pad_x, pad_y, mask)))
    assert torch.allclose(stacked[0], alone, atol=1e-6)
    assert torch.allclose(stacked[1], alone, atol=1e-6)


def test_sums_of_features_ignore_padding() -> None:
    net, params, data, _ = setting([0.0] * 4)
    padded = Data(torch.cat([data.x, data.x]), torch.cat([data.y, data.y]), torch.tensor([1.0] * 4 + [0.0] * 4))
    for ours, plain in zip(feature_sums(net, params, padded), feature_sums(net, params, data), strict=True):
        assert torch.allclose(ours, plain, atol=1e-6)


def test_no_augmentation_equals_mu_zero_bit_for_bit() -> None:
    for softmax in ("fedavg", "relaxed_balanced_softmax(eps=0.01)"):
        without = Run(small_experiment(softmax)).go()
        neutral = Run(small_experiment(f"{softmax}+prototype_augmentation(mu=0, eps=0.01)")).go()
        assert torch.equal(neutral.params, without.params)


def test_the_state_starts_with_no_prototype() -> None:
    net = small_network()
    state = hook(make_method("rebafl"), "init")(Setting(net, net.initial(), 3))
    assert state["prototypes"].shape == (net.n_classes, net.n_features)
    assert float(state["known"].sum()) == 0.0


def test_augmentation_of_a_fixed_head_is_refused() -> None:
    with pytest.raises(ConflictError, match="holds fixed"):
        make_method("rebafl+fedbabu")
