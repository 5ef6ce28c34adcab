"""What modules do in training beside computing, against torch's own and against draws counted by hand."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from motley.core.errors import DataError
from motley.core.in_training import Pass, Watched
from motley.core.keys import Key
from motley.core.network import Network
from motley.methods import make_method
from tests import tiny

KEY = Key.root(5).tensor()


def passed(step: int = 0, key: Tensor = KEY, mask: Tensor | None = None) -> Pass:
    return Pass(key, torch.tensor(step), 0, mask)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Normed(nn.Module):
    """Images through batch norm of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(3, momentum=0.3)
        self.dense = nn.Linear(12, 5)
        self.flat_norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu().flatten(1)
        logits: Tensor = self.head(self.flat_norm(self.dense(x)))
        return logits


def trained(net: Network, x: Tensor, one: Pass) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits and running statistics of a pass of training from the network's own weights."""
    out, fresh = net.train(net.layout.tensors(net.initial()), x, one)
    return out.logits, dict(zip((slot.name for slot in net.layout.statistics), fresh, strict=True))


def test_running_statistics_are_part_of_the_model_and_as_torch_computes_them() -> None:
    module, x = Normed(), normal(6, 2, 4, 4)
    theirs = copy.deepcopy(module)
    net = Network(module)
    assert net.size == sum(p.numel() for p in module.parameters()) + 2 * 3 + 2 * 5
    logits, fresh = trained(net, x, passed())
    expected = theirs(x)
    assert torch.allclose(logits, expected, atol=1e-6)
    state = theirs.state_dict()
    assert sorted(fresh) == ["flat_norm.running_mean", "flat_norm.running_var", "norm.running_mean", "norm.running_var"]
    for name, value in fresh.items():
        assert torch.allclose(value, state[name], atol=1e-6)
    flat = net.initial()
    net.layout.put_statistics(flat, tuple(fresh.values()))
    assert torch.allclose(net(flat, x).logits, theirs.eval()(x), atol=1e-6)
    assert torch.equal(module.norm.running_mean, torch.zeros(3))  # the user's own module is as it was


def test_gradients_through_batch_norm_are_torchs() -> None:
    module, x = Normed(), normal(6, 2, 4, 4)
    net = Network(module)
    flat = net.initial().requires_grad_()
    out, _ = net.train(net.layout.tensors(flat), x, passed())
    (grad,) = torch.autograd.grad(out.logits.square().sum(), flat)
    copy.deepcopy(module)(x)
    module(x).square().sum().backward()
    for slot in net.layout.slots:
        piece = grad[slot.start : slot.stop].view(slot.shape)
        expected = module.get_parameter(slot.name).grad if slot.by_gradient else torch.zeros(slot.shape)
        assert expected is not None
        assert torch.allclose(piece, expected, atol=1e-5), slot.name


@pytest.mark.parametrize("quick", [True, False])
def test_rows_that_are_padding_change_neither_outputs_nor_statistics(quick: bool) -> None:
    net, x = Network(Normed()), normal(5, 2, 4, 4)
    mask = torch.ones(5) if not quick else None
    logits, fresh = trained(net, x, passed(mask=mask))
    padded = torch.cat([x, 100 * normal(3, 2, 4, 4, seed=1)])
    more, same = trained(net, padded, passed(mask=torch.tensor([1.0] * 5 + [0.0] * 3)))
    assert torch.allclose(more[:5], logits, atol=1e-5)
    for name, value in fresh.items():
        assert torch.allclose(value, same[name], atol=1e-5), name


def test_many_clients_at_once_are_as_one_by_one() -> None:
    net = Network(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)))
    flats = torch.stack([net.initial(), net.initial() * 1.3])
    keys, x = torch.stack([Key.root(1).tensor(), Key.root(2).tensor()]), normal(2, 6, 3)

    def one(flat: Tensor, key: Tensor, x: Tensor) -> Any:
        out, fresh = net.train(net.layout.tensors(flat), x, passed(key=key))
        return out.logits, fresh

    logits, fresh = vmap(one)(flats, keys, x)
    for k in range(2):
        own, statistics = one(flats[k], keys[k], x[k])
        assert torch.allclose(own, logits[k], atol=1e-6)
        for mine, theirs in zip(statistics, fresh, strict=True):
            assert torch.allclose(mine, theirs[k], atol=1e-6)


def test_one_value_alone_is_normed_by_the_running_statistics_and_leaves_them() -> None:
    net = Network(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)))
    x = torch.tensor([[3.0, -1.0]])
    for mask in (None, torch.ones(1)):
        logits, fresh = trained(net, x, passed(mask=mask))
        assert torch.allclose(logits, net(net.initial(), x).logits, atol=1e-5)
        assert fresh["0.running_mean"].tolist() == [0.0, 0.0]
        assert fresh["0.running_var"].tolist() == [1.0, 1.0]


def test_a_layer_that_is_called_twice_goes_on_from_its_own_statistics() -> None:
    norm = nn.BatchNorm1d(2)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm

        def forward(self, x: Tensor) -> Tensor:
            twice: Tensor = self.norm(self.norm(x) + 3.0)
            return twice

    module = Twice()
    theirs = copy.deepcopy(module)
    x = normal(8, 2)
    _, fresh = trained(Network(module), x, passed())
    theirs(x)
    assert torch.allclose(fresh["norm.running_mean"], theirs.norm.running_mean, atol=1e-6)


def test_frozen_batch_norm_is_held() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    module[0].requires_grad_(False)
    net = Network(module)
    assert [slot.name for slot in net.layout.slots] == ["1.weight", "1.bias"]
    x = normal(8, 2)
    logits, fresh = trained(net, x, passed())
    assert fresh == {}
    assert torch.allclose(logits, module[1](x / (1 + 1e-5) ** 0.5), atol=1e-6)


def test_batch_norm_without_weights_has_statistics() -> None:
    net = Network(nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2)))
    assert [slot.name for slot in net.layout.statistics] == ["0.running_mean", "0.running_var"]


# ------------------------------------------------------------------ draws
def dropped(share: float, x: Tensor, one: Pass) -> Tensor:
    net = Network(nn.Sequential(nn.Dropout(share), nn.Linear(x.shape[1], x.shape[1], bias=False)))
    flat = torch.eye(x.shape[1]).flatten()
    return net.train(net.layout.tensors(flat), x, one)[0].logits


def test_units_are_dropped_by_the_key_and_the_step_alone() -> None:
    x = torch.ones(64, 50)
    first = dropped(0.25, x, passed())
    torch.manual_seed(1)
    assert torch.equal(first, dropped(0.25, x, passed()))
    assert sorted(set(first.flatten().tolist())) == [0.0, pytest.approx(4 / 3)]
    assert abs(float((first == 0).float().mean()) - 0.25) < 0.03
    assert not torch.equal(first, dropped(0.25, x, passed(1)))
    assert not torch.equal(first, dropped(0.25, x, passed(key=Key.root(6).tensor())))
    assert torch.equal(first[:10], dropped(0.25, x[:10], passed()))  # whatever rows follow
    assert not dropped(1.0, x, passed()).any()


def test_a_module_is_judged_without_draws() -> None:
    net = Network(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)))
    x = normal(4, 3)
    assert torch.equal(net(net.initial(), x).logits, net.module[1](x))  # type: ignore[index]
    assert net.module.training


def test_whole_channels_are_dropped() -> None:
    net = Network(nn.Sequential(nn.Dropout2d(0.5), nn.Conv2d(6, 6, 1, groups=6, bias=False)))
    found = net.train([torch.ones(6, 1, 1, 1)], torch.ones(8, 6, 2, 2), passed())[0].logits
    assert set(found.flatten(2).sum(-1).flatten().tolist()) == {0.0, 8.0}


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    net = Network(nn.Sequential(nn.AlphaDropout(0.3), nn.Linear(1, 1, bias=False)))
    x = normal(20000, 1)
    found = net.train([torch.ones(1, 1)], x, passed())[0].logits
    assert abs(float(found.mean())) < 0.05
    assert abs(float(found.var()) - 1) < 0.06
    assert float(found.min()) < float(x.min()) or len(found.unique()) < 20000


def test_draws_of_a_layout_with_time_first_depend_on_the_row_alone() -> None:
    def drawn(rows: int) -> Tensor:
        watched = Watched(passed(), rows, {})
        with watched:
            return F.dropout(torch.ones(5, rows, 4))

    assert torch.equal(drawn(7)[:, :3], drawn(3))


@pytest.mark.parametrize("masked", ["none", "causal", "bool", "float"])
def test_attention_with_dropout_is_torchs_where_nothing_is_dropped(masked: str) -> None:
    q, k, v = (normal(2, 3, 5, 4, seed=i) for i in range(3))
    allowed = torch.ones(5, 5, dtype=torch.bool).tril()
    mask = {"bool": allowed, "float": normal(5, 5, seed=4)}.get(masked)
    expected = F.scaled_dot_product_attention(q, k, v, mask, 0.0, masked == "causal")
    with Watched(passed(), 2, {}) as watched:
        found = F.scaled_dot_product_attention(q, k, v, mask, 1e-12, masked == "causal")
    assert watched.seen == 1
    assert torch.allclose(found, expected, atol=1e-6)


def test_attention_layers_drop_by_the_key() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.4, batch_first=True)
    net = Network(nn.Sequential(layer, nn.Linear(8, 2)))
    x = normal(3, 5, 8)
    tensors = net.layout.tensors(net.initial())
    first = net.train(tensors, x, passed())[0].logits
    torch.manual_seed(3)
    assert torch.equal(first, net.train(tensors, x, passed())[0].logits)
    assert not torch.allclose(first, net.train(tensors, x, passed(1))[0].logits)
    assert torch.allclose(net.train(tensors, x[:2], passed())[0].logits, first[:2], atol=1e-6)
    layer.eval()
    assert torch.allclose(net(net.initial(), x).logits, net.module[1](layer(x)), atol=1e-5)  # type: ignore[index]


class Noisy(nn.Module):
    """Draws by functions of torch, as variational models and stochastic depth do."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.scale = how, nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        made = {
            "randn_like": lambda: torch.randn_like(x),
            "rand": lambda: torch.rand(len(x), 3),
            "bernoulli_": lambda: x.new_empty(len(x), 1).bernoulli_(0.5).expand(-1, 3),
            "normal_": lambda: torch.empty_like(x).normal_(1.0, 2.0),
            "bernoulli": lambda: torch.bernoulli(torch.full_like(x, 0.5)),
        }[self.how]()
        return x + self.scale * made


@pytest.mark.parametrize("how", ["randn_like", "rand", "bernoulli_", "normal_", "bernoulli"])
def test_other_draws_take_the_key_too(how: str) -> None:
    net, x = Network(Noisy(how)), torch.zeros(2000, 3)
    first = net.train([torch.ones(1)], x, passed())[0].logits
    assert torch.equal(first, net.train([torch.ones(1)], x, passed())[0].logits)
    mean, deviation = {
        "randn_like": (0, 1), "rand": (0.5, 12**-0.5), "bernoulli_": (0.5, 0.5), "normal_": (1, 2),
        "bernoulli": (0.5, 0.5),
    }[how]  # fmt: skip
    assert abs(float(first.mean()) - mean) < 0.1
    assert abs(float(first.std()) - deviation) < 0.1


class Other(nn.Module):
    def __init__(self, act: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("count", torch.zeros(1))
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self, x) * self.weight
        return out


def _counts(m: Any, x: Tensor) -> Tensor:
    m.count += 1
    return x


def _replaces(m: Any, x: Tensor) -> Tensor:
    m.count = m.count + 1
    return x


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda m, x: F.gumbel_softmax(x), "gumbel_softmax from a generator that no other engine can repeat"),
        (lambda m, x: x[torch.randperm(len(x))], "draws by torch.randperm"),
        (_counts, "changes its buffer 'count' in a forward pass"),
        (_replaces, "changes its buffer 'count' in a forward pass"),
    ],
)
def test_what_cannot_be_repeated_is_refused_when_it_is_looked_at(act: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Network(Other(act)).look(normal(2, 3))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None)), "'1' averages its statistics over all"),
        (nn.Sequential(nn.Conv1d(1, 3, 1), nn.InstanceNorm1d(3, track_running_stats=True)), "'1' .InstanceNorm1d."),
        (nn.Sequential(nn.Linear(4, 3), nn.SyncBatchNorm(3)), "'1' .SyncBatchNorm."),
        (nn.LSTM(4, 3, num_layers=2, dropout=0.1), "drops units inside torch's kernel"),
    ],
)
def test_what_cannot_be_trained_client_by_client_is_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Network(module)


def test_a_plain_model_is_not_watched_after_the_first_look() -> None:
    assert not Network(nn.Linear(3, 2)).acts(normal(2, 3))
    for layer in (nn.Dropout(0.5), nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False)):
        assert Network(nn.Sequential(layer, nn.Linear(3, 2))).acts(normal(2, 3))


@pytest.mark.parametrize("method", ["fedavg+hand_over_noise(sigma=1, clip=5)", "fedavg+add_stale_changes(lr=5)"])
def test_variances_stay_numbers_under_noise(method: str) -> None:
    """Noise and extrapolation would take them below 0, whose root is no number."""
    module = nn.Sequential(nn.Linear(9, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    result = tiny.run(make_method(method), net=Network(module), rounds=3, cohort=4)
    assert torch.isfinite(result.params).all()
    assert bool((result.net.layout.unflatten(result.params)["1.running_var"] >= 0).all())  # type: ignore[union-attr]
    assert all(math.isfinite(record.loss) for record in result.records if record.judged)
