"""FedNova, MOON's term, masks, neutral settings, and combinations that no paper tried."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from motley.core.errors import ConflictError, InputError
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import Method, compose
from motley.core.types import Batch, Plan, Round, Setting, Updates
from motley.methods import make_method
from motley.nets import build
from motley.nets.models import Split
from motley.runtime.experiment import prepare
from motley.runtime.launch import Run
from motley.runtime.recipe import Recipe
from motley.server.merge import effective_steps, normalised_averaging, whole_model_mean
from motley.server.method_server import MethodServer
from motley.server.step import mix_with_previous
from tests.equations.small import client, facts, small_experiment, small_network
from tests.tiny import updates_of


def arrived(delta: torch.Tensor, trained: torch.Tensor, n: list[float], steps: list[float]) -> Updates:
    return updates_of(delta, trained, n=n, steps=steps)


ROUND = Round(1, Key.root(0), 2, 0.0)


def merged(method: Method, net: Network, updates: Updates, number: int = 1) -> torch.Tensor:
    """What a server that begins at zero makes of some updates."""
    zero = torch.zeros(net.size)
    return MethodServer(method, Setting(net, zero, 2)).aggregate(ROUND._replace(number=number), zero, updates)


def test_fednova_by_hand() -> None:
    """p = (1/4, 3/4), steps (2, 6): tau_eff = 5; each change counts as p * 5 / steps."""
    net = small_network()
    delta = torch.stack([torch.ones(net.size), 2 * torch.ones(net.size)])
    updates = arrived(delta, torch.ones(2, net.n_layers), [1.0, 3.0], [2.0, 6.0])
    new = merged(compose(normalised_averaging()), net, updates)
    assert torch.allclose(new, torch.full((net.size,), 0.25 * 5 / 2 * 1 + 0.75 * 5 / 6 * 2))


def test_fednova_counts_momentum() -> None:
    """Three steps with momentum 0.5 go 1 + 1.5 + 1.75 = 4.25 times the gradient."""
    assert float(effective_steps(torch.tensor(3.0), 0.5)) == pytest.approx(4.25)
    assert float(effective_steps(torch.tensor(3.0), 0.0)) == 3.0


def test_fednova_is_the_mean_with_equal_work() -> None:
    same = {"batch_size": 16, "epochs": 3}
    plain, nova = (Run(small_experiment(m, **same)).go().params for m in ("fedavg", "fednova(momentum=0.5)"))
    assert torch.allclose(plain, nova, atol=1e-6)


def test_whole_model_mean_counts_untouched_layers() -> None:
    net = small_network()
    trained = torch.ones(2, net.n_layers)
    trained[0, 0] = 0.0
    delta = torch.ones(2, net.size) * net.layout.expand(trained)
    updates = arrived(delta, trained, [1.0, 3.0], [1.0, 1.0])
    whole, split = (merged(method, net, updates) for method in (compose(whole_model_mean()), compose()))
    first = net.layout.layers[0]
    assert torch.allclose(whole[: first.stop], torch.full((first.stop,), 0.75))
    assert torch.allclose(split[: first.stop], torch.ones(first.stop))
    assert torch.allclose(whole[first.stop :], split[first.stop :])


def test_alpha_schedule_by_hand() -> None:
    """alpha_t = min(0.1 + 0.0025 t, 0.95): 0.85 in round 300, clamped from round 340 on."""
    net = small_network()
    method = compose(mix_with_previous(alpha=0.1, slope=2.5e-3))
    updates = arrived(torch.ones(1, net.size), torch.ones(1, net.n_layers), [1.0], [1.0])
    for t, alpha in ((1, 0.1025), (100, 0.35), (300, 0.85), (340, 0.95), (1000, 0.95)):
        mixed = merged(method, net, updates, t)
        assert float(mixed[0]) == pytest.approx(1 - alpha, abs=1e-6)


def test_contrastive_term_by_hand() -> None:
    """z = z_glob and z_prev at a cosine of s: softplus((s - 1) / T)."""
    net = small_network()
    params = net.initial()
    method = make_method("moon(mu=3.0, temperature=0.5)")
    previous = params.clone()
    previous[: net.layout.layers[0].stop] *= -1
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    c = client(method, net, params, [5.0, 0, 0, 0], own={"model_contrastive": previous})
    ((name, penalty),) = method.hooks("penalty")
    value = penalty(c, c.mine(name), Batch(x, torch.zeros(5, dtype=torch.int64)), net(params, x))
    s = torch.nn.functional.cosine_similarity(net.features(params, x), net.features(previous, x))
    expected = sum(-math.log(math.exp(2) / (math.exp(2) + math.exp(2 * float(v)))) for v in s) / 5
    assert float(value) == pytest.approx(3.0 * expected, rel=1e-5)


class WithProjection(Split):
    """Two features, which a projection head swaps and doubles the first of."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2, bias=False)
        self.head = nn.Linear(2, 3)
        self.projection = nn.Sequential(nn.Linear(2, 2, bias=False))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)  # type: ignore[no-any-return]


def weights(net: Network, body: list[list[float]], projection: list[list[float]]) -> torch.Tensor:
    named = net.layout.unflatten(net.initial())
    given = {"body.weight": torch.tensor(body), "projection.0.weight": torch.tensor(projection)}
    return net.layout.flatten({**named, **given})


def test_contrastive_term_on_a_projection_head_by_hand() -> None:
    """z = (3, 4) now, (4, 3) as received, (0, 5) before: cosines 24/25 and 4/5, by another head of each model."""
    net = Network(WithProjection())
    one = [[1.0, 0.0], [0.0, 1.0]]
    now = weights(net, one, [[0.0, 1.0], [1.0, 0.0]])  # x = (4, 3): features (4, 3), projected (3, 4)
    received = weights(net, one, one)
    previous = weights(net, one, [[0.75, -1.0], [0.5, 1.0]])  # (0, 5)
    method = make_method("moon(mu=2.0, temperature=0.5, projection=true)")
    c = client(method, net, received, [1.0, 0, 0], own={"model_contrastive": previous}).with_(params=now)
    ((name, penalty),) = method.hooks("penalty")
    x, y = torch.tensor([[4.0, 3.0]]), torch.zeros(1, dtype=torch.int64)
    near, far = math.exp(24 / 25 / 0.5), math.exp(4 / 5 / 0.5)

    def term(flat: torch.Tensor) -> torch.Tensor:
        told: torch.Tensor = penalty(c.with_(params=flat), c.mine(name), Batch(x, y), net(flat, x))
        return told

    assert float(term(now)) == pytest.approx(-2.0 * math.log(near / (near + far)), rel=1e-5)
    slope = net.layout.unflatten(torch.func.grad(term)(now))
    assert slope["projection.0.weight"].abs().max() > 0
    assert slope["body.weight"].abs().max() > 0
    assert slope["head.weight"].abs().max() == 0


def test_executors_agree_on_a_projection_head() -> None:
    content = {
        "data": "digits",
        "clients": 6,
        "cohort": 3,
        "rounds": 2,
        "model": "cnn_rebafl(channels=[4, 6], padding=2, projection=[8, 5])",
        "method": "moon(projection=true)",
        "executor": "loop",
    }
    loop, batched = (Run(prepare(Recipe(**content | {"executor": name}))) for name in ("loop", "batched"))
    begun = loop.experiment.net.layout.unflatten(loop.experiment.net.initial())["projection.0.weight"].clone()
    one, other = loop.go().params, batched.go().params
    assert torch.allclose(one, other, atol=1e-4)
    assert not torch.equal(loop.experiment.net.layout.unflatten(one)["projection.0.weight"], begun)


def test_a_projection_needs_a_model_that_has_one() -> None:
    with pytest.raises(InputError, match=r"MLP has none here; take one, such as cnn_rebafl"):
        Run(small_experiment("moon(projection=true)"))


def test_masks_of_the_papers_network() -> None:
    """FES on AMA's CNN: the three linear layers; FedBABU: all but the last."""
    net = build("cnn_ama", (1, 28, 28), 10, 0, Key.root(0))
    ((_, mask),) = make_method("classifier_only_when_limited").hooks("trainable")
    assert mask(net, facts([1.0], limited=1.0)).tolist() == [0, 0, 1, 1, 1]
    assert mask(net, facts([1.0], limited=0.0)).tolist() == [1] * 5
    ((_, body),) = make_method("fedbabu").hooks("trainable")
    assert body(net, facts([1.0])).tolist() == [1, 1, 1, 1, 0]
    ((_, head),) = make_method("classifier_only").hooks("trainable")
    assert head(net, facts([1.0])).tolist() == [0, 0, 1, 1, 1]


def test_less_work_only_for_limited_devices() -> None:
    ((_, plan),) = make_method("less_work_when_limited(fraction=0.25)").hooks("plan")
    ten = torch.full((2,), 10.0)
    given = Plan(ten, ten, ten, torch.zeros(2), torch.tensor([0.0, 1.0]))
    assert plan(None, ROUND, torch.arange(2), given).epochs.tolist() == [10.0, 2.5]
    assert plan(None, ROUND, torch.arange(2), given._replace(limited=None)).epochs.tolist() == [10.0, 10.0]


@pytest.mark.parametrize(
    ("method", "same_as"),
    [
        ("ama_fes(alpha0=0, eta=0)", "fedavg"),
        ("ama_fes", "ama"),
        ("fes", "fedavg"),
        ("naive_fl", "fedavg"),
        ("less_work_when_limited(fraction=0.5)", "fedavg"),
        ("rebafl(eps=1, mu=0)", "fedavg"),
        ("moon(mu=0)", "fedavg"),
        ("retrain_head(per_class=2, steps=0)", "fedavg"),
        ("bsm_fedavg", "relaxed_balanced_softmax(eps=0)"),
    ],
)
def test_neutral_settings_bit_for_bit(method: str, same_as: str) -> None:
    """With no limited device, FES is full training; alpha0 = eta = 0, eps = 1, mu = 0 are FedAvg."""
    ours, other = (Run(small_experiment(m)).go().params for m in (method, same_as))
    assert torch.equal(ours, other)


@pytest.mark.parametrize(
    "method",
    [
        "ama_fes+rebafl",
        "scaffold+relaxed_balanced_softmax",
        "fedadam+rebafl",
        "feddyn+rebafl+fes",
        "moon+fedlc+fednova",
        "fedbabu+ama+fedrs",
        "rebafl+moon+label_smoothing+fedavgm",
        "naive_fl+rebafl",
        "fedavg_ft(per_class=3)+bsm_fedavg+ama",
        "fedprox_limited+rebafl",
    ],
)
def test_combinations_that_no_paper_tried(method: str) -> None:
    """They train, and each of their ingredients matters."""
    made = Run(small_experiment(method, limited=(1,))).go()
    assert torch.isfinite(made.params).all()
    for piece in method.split("+"):
        alone = Run(small_experiment(piece, limited=(1,))).go()
        assert not torch.equal(alone.params, made.params)


@pytest.mark.parametrize(
    "method", ["fedbabu+classifier_only", "fedbabu+rebafl", "fedbabu+fedavg_ft", "naive_fl+fes", "moon+classifier_only"]
)
def test_combinations_without_meaning_are_refused(method: str) -> None:
    with pytest.raises(ConflictError, match="cannot be combined"):
        make_method(method)


@pytest.mark.parametrize("method", ["rebafl(eps=0)+moon", "ama_fes+fedlc", "fedbabu+fedrs+label_smoothing+fednova"])
def test_clients_trained_together_equal_clients_one_by_one(method: str) -> None:
    """Padding of unequal clients, masks and client state under vmap."""
    alone, together = (
        Run(small_experiment(method, limited=(1,), executor=executor)).go().params for executor in ("loop", "batched")
    )
    assert torch.allclose(alone, together, atol=1e-6)
