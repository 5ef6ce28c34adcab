"""FreezeFL: equations 1-8 by hand, whole tasks and rounds against plain loops, and time that is really saved."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from motley.client.freeze import forecast, freeze_prefix, layer_importance, layers_to_freeze
from motley.client.minibatch import minibatches
from motley.client.optimizer import SGD
from motley.client.trainer import Training, new_client, train
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import compose
from motley.core.types import Client, Data, Facts, Pool, Round, Setting, Updates
from motley.nets.cost import cost_of, flops
from motley.nets.zoo import build
from motley.runtime.costs import Costs, Work
from motley.runtime.experiment import prepare
from motley.runtime.launch import run as run_recipe
from motley.runtime.recipe import load
from motley.server.aggregate import layerwise_mean
from motley.server.select import reputation, warm_restart
from tests import tiny
from tests.tiny import filled, updates_of

NET = Network(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 3)))  # 6, 3, 6 numbers


def facts(epochs: float = 3.0, speed: float = 10.0, upload: float = 3.0, download: float = 1.0, **more: float) -> Facts:
    given = {"n": 8.0, "lr": 0.1, "steps": 6.0, "limited": 0.0, "capability": 1.0, **more}
    zero = torch.tensor(0)
    return Facts(
        client=zero,
        round=torch.tensor(1),
        labels=torch.ones(3),
        epochs=torch.tensor(epochs),
        speed=torch.tensor(speed),
        upload=torch.tensor(upload),
        download=torch.tensor(download),
        **{name: torch.tensor(value) for name, value in given.items()},
    )


# ------------------------------------------------------------------------------------- eq. 1, 2, 3


def test_the_soft_deadline_is_a_moving_average_of_times() -> None:
    part = freeze_prefix(deadline=10.0, ema=0.8)
    s = filled(part.init)(Setting(NET, torch.zeros(NET.size), 4))
    found = updates(torch.zeros(2, NET.size), torch.ones(2, 3), duration=[2.0, 6.0])
    s = filled(part.observe)(s, at(1), found)
    assert float(s["deadline"]) == pytest.approx(0.8 * 10 + 0.2 * 4)


def test_without_a_first_deadline_the_first_times_set_it() -> None:
    part = freeze_prefix()
    s = filled(part.init)(Setting(NET, torch.zeros(NET.size), 4))
    assert math.isinf(float(filled(part.send)(s, at(1))["deadline"]))
    found = updates(torch.zeros(2, NET.size), torch.ones(2, 3), duration=[2.0, 6.0])
    s = filled(part.observe)(s, at(1), found)
    assert float(s["deadline"]) == 4.0


def test_importance_is_the_mean_change_per_layer() -> None:
    start = torch.zeros(NET.size)
    params = start.clone()
    params[:6] = torch.tensor([1.0, -1.0, 2.0, 0.0, 0.0, 2.0])
    params[6:9] = 0.5
    assert layer_importance(NET, start, params).tolist() == pytest.approx([1.0, 0.5, 0.0])


def test_the_forecast_counts_download_compute_and_upload() -> None:
    cost = torch.tensor([1.0, 0.5, 0.25])
    tau = forecast(NET, facts(), cost)
    # download 1 + first epoch 10 + two epochs at the reduced cost + upload of what is left of 15 numbers
    assert tau.tolist() == pytest.approx([1 + 10 + 20 + 3, 1 + 10 + 10 + 3 * 9 / 15, 1 + 10 + 5 + 3 * 6 / 15])
    assert forecast(NET, facts(epochs=0.5), cost)[0].item() == pytest.approx(1 + 5 + 3)


def freeze(importance: list[float], seconds: list[float], deadline: float, beta: float) -> int:
    return int(layers_to_freeze(torch.tensor(importance), torch.tensor(seconds), torch.tensor(deadline), beta))


def test_the_number_of_frozen_layers_by_hand() -> None:
    """beta 1, T = 10: 6 * 10/30 = 2; 5 * 10/20 = 2.5; 3 * 1 = 3."""
    assert freeze([1.0, 2.0, 3.0], [30.0, 20.0, 10.0], 10.0, 1.0) == 2
    assert freeze([4.0, 2.0, 3.0], [12.0, 11.0, 10.0], 10.0, 1.0) == 0  # 9 * 10/12 = 7.5 against 4.5 and 3
    assert freeze([0.1, 2.0, 3.0], [30.0, 20.0, 10.0], 50.0, 9.0) == 0  # in time: no penalty
    assert freeze([0.5, 2.0, 0.1], [40.0, 20.0, 19.0], 10.0, 1.0) == 1  # 0.65, 1.05, 0.053


def test_extreme_betas() -> None:
    for importance in ([1.0, 2.0, 3.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]):
        assert freeze(importance, [30.0, 20.0, 10.0], 1.0, 0.0) == 0
    assert freeze([1e6, 1.0, 1e-6], [30.0, 20.0, 19.0], 1.0, float("inf")) == 2
    assert freeze([1.0, 1.0, 0.0], [30.0, 20.0, 19.0], 1.0, 1e4) <= 2  # at least one layer stays


# ------------------------------------------------------------------------------------- a whole task


def begun(training: Training, deadline: float, cost: Tensor, known: Facts) -> Client:
    """A client that has received its task with a soft deadline."""
    down = {"freeze_prefix": {"deadline": torch.tensor(deadline), "cost": cost}}
    return new_client(training, training.net.initial(), known, Key.root(3).tensor(), down)


def test_a_task_against_a_plain_loop() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    net = Network(module)
    data = Data(torch.randn(20, 4), torch.randint(0, 3, (20,)))
    cost = torch.tensor([1.0, 0.6, 0.4])
    known = facts(epochs=3.0, steps=12.0, n=20.0, speed=1.0, upload=2.0)
    training = Training(net, compose(freeze_prefix(beta=2.0)), SGD(), 5)
    client = begun(training, 4.0, cost, known)
    made = train(training, client, data)

    layers = [module[0], module[2], module[4]]
    received = [p.detach().clone() for p in module.parameters()]
    frozen = 0
    for step, (batch, ended) in enumerate(minibatches(client.key, data, 5, 12)):
        loss = cross_entropy(module(batch.x), batch.y)
        module.zero_grad()
        loss.backward()
        with torch.no_grad():
            for layer in layers[frozen:]:
                for p in layer.parameters():
                    p.sub_(0.1 * p.grad)
        if ended and step == 3:
            importance = []
            for i, layer in enumerate(layers):
                change = sum((p - received[2 * i + j]).abs().sum() for j, p in enumerate(layer.parameters()))
                importance.append(float(change.detach()) / sum(p.numel() for p in layer.parameters()))
            sizes = [40, 54, 21]
            scores = []
            for n in range(3):
                tau = 1.0 + 1.0 + 2.0 * float(cost[n]) + 2.0 * sum(sizes[n:]) / sum(sizes)
                scores.append(sum(importance[n:]) * (4.0 / tau if tau > 4.0 else 1.0) ** 2.0)
            frozen = scores.index(max(scores))
            with torch.no_grad():
                for i in range(frozen):
                    for j, p in enumerate(layers[i].parameters()):
                        p.copy_(received[2 * i + j])
    assert 0 < frozen < 3
    assert made.trained.tolist() == [float(i >= frozen) for i in range(3)]
    end = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    assert torch.allclose(net.initial(), end)  # the module was trained in place
    begin = torch.cat([p.reshape(-1) for p in received])
    assert torch.allclose(made.payload, end - begin, atol=1e-6)
    assert bool((made.payload[: net.layout.layers[frozen].start] == 0).all())


# ------------------------------------------------------------------------------------- eq. 4-8


def updates(
    delta: Tensor, trained: Tensor, duration: list[float] | None = None, width: Tensor | None = None
) -> Updates:
    k = len(delta)
    seconds = torch.tensor(duration) if duration else torch.ones(k)
    return updates_of(delta, trained, n=torch.tensor([1.0, 3.0])[:k], duration=seconds, width=width)


def at(t: int, cohort: int = 2) -> Round:
    return Round(t, Key.root(0), cohort, 0.0, None, NET)


def test_layers_are_averaged_over_those_who_trained_them() -> None:
    delta = torch.stack([torch.ones(NET.size), torch.cat([torch.zeros(6), 5 * torch.ones(9)])])
    trained = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    delta = delta * NET.layout.expand(trained)
    new = layerwise_mean(NET, torch.full((NET.size,), 10.0), updates(delta, trained), torch.tensor([1.0, 3.0]))
    assert new.tolist() == pytest.approx([11.0] * 6 + [10 + (1 + 3 * 5) / 4] * 3 + [10.0] * 6)


def test_utilities_by_hand() -> None:
    delta = torch.stack([torch.ones(NET.size), torch.cat([torch.zeros(6), -torch.ones(3), 2 * torch.ones(6)])])
    trained = torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    new = torch.cat([2 * torch.ones(6), torch.ones(3), 0.5 * torch.ones(6)])
    part = reputation(ema=0.75, scale="none", restart=0)
    s = filled(part.init)(Setting(NET, torch.zeros(NET.size), 3))
    _, s = filled(part.step)(s, at(1), torch.zeros(NET.size), new, updates(delta, trained))
    first = 3 * (2.0 + 1.0 + 0.5)  # U_sys 3; inner products over dimensions, layer by layer
    second = 2 * (-1.0 + 2 * 0.5)  # layers 2 and 3 alone
    assert s["utility"].tolist() == pytest.approx([0.75 + 0.25 * first, 0.75 + 0.25 * second, 1.0])
    assert s["times"].tolist() == [1.0, 1.0, 0.0]


def test_who_disagrees_has_no_utility_and_width_counts_as_efficiency() -> None:
    delta = torch.stack([torch.ones(NET.size), -torch.ones(NET.size)])
    part = reputation(ema=0.0, scale="none", restart=0)
    s = filled(part.init)(Setting(NET, torch.zeros(NET.size), 2))
    found = updates(delta, torch.ones(2, 3), width=torch.tensor([0.5, 1.0]))
    _, s = filled(part.step)(s, at(1), torch.zeros(NET.size), torch.ones(NET.size), found)
    assert s["utility"].tolist() == pytest.approx([3 * 0.5 * 3.0, 0.0])


def test_warm_restart_by_hand() -> None:
    """Mean 3, bound sqrt(2 ln 10 / phi) = 2.146 for phi 0 or 1, 1.073 for 4."""
    utility = torch.tensor([0.0, 2.5, 3.0, 6.5, 3.0])
    times = torch.tensor([4.0, 0.0, 1.0, 1.0, 4.0])
    bound = math.sqrt(2 * math.log(10))
    assert warm_restart(utility, times, 10).tolist() == pytest.approx([bound / 2, 3.0, 3.0, 6.5 - bound, 3.0])


def test_restarts_come_every_phi_rounds_and_forget_counts() -> None:
    conclude = filled(reputation(restart=5).conclude)
    s = {"utility": torch.tensor([0.0, 2.0]), "times": torch.tensor([3.0, 1.0])}
    nothing: Any = object()
    assert conclude(s, at(4), nothing) is s
    after = conclude(s, at(5), nothing)
    assert after["times"].tolist() == [0.0, 0.0]
    assert after["utility"].tolist() != [0.0, 2.0]


# ------------------------------------------------------------------------------------- whole runs

WORLD = {"fleet": "freezefl", "clients": 12, "cohort": 4, "rounds": 5, "epochs": 3, "model": "mlp(hidden=[16, 8])"}


def test_with_beta_zero_it_is_fedavg_with_its_selection() -> None:
    frozen = run_recipe("digits", **WORLD, method="freezefl(beta=0, restart=2)")
    plain = run_recipe("digits", **WORLD, method="reputation(restart=2)")
    assert torch.equal(frozen.params, plain.params)
    assert frozen.summary["bytes_up"] == plain.summary["bytes_up"]


def test_freezing_saves_bytes_and_virtual_time() -> None:
    frozen = run_recipe("digits", **WORLD, method="freezefl(beta=4, selection=false)")
    plain = run_recipe("digits", **WORLD, method="fedavg")
    assert frozen.summary["bytes_up"] < plain.summary["bytes_up"]
    assert frozen.summary["virtual_time"] < plain.summary["virtual_time"]


def test_the_clock_charges_one_whole_epoch_and_then_what_is_left() -> None:
    e = prepare(load("digits", {**WORLD, "method": "freezefl"}))
    task = tiny.assignment(2, net=e.net, epochs=3.0)
    costs, fleet = Costs(e.site, e.fleet, e.cost), e.fleet
    n, size, rest = int(e.data.sizes[2]), e.net.size, sum(e.net.layout.layer_sizes[1:].tolist())
    compute = n * (flops(e.cost, 0) + 2 * flops(e.cost, 1)) / fleet.flops[2]
    expected = compute + 4 * size / fleet.down[2] + 4 * rest / fleet.up[2]
    assert costs.seconds([Work(task, 3.0, 0.0, torch.tensor([0.0, 1.0, 1.0]))]) == pytest.approx([expected])


def test_frozen_layers_really_skip_their_backward_pass() -> None:
    """All but the last layer frozen after the first of four epochs: about half the operations, clearly less time."""
    net = build("cnn_leaf(hidden=256)", (1, 28, 28), 10, 0, Key.root(0))
    data = Data(torch.randn(40, 1, 28, 28), torch.randint(0, 10, (40,)))
    known = facts(epochs=4.0, steps=8.0, n=40.0, speed=1.0)
    cost = cost_of(net, data.x)
    shares = torch.tensor([flops(cost, n) / flops(cost, 0) for n in range(net.n_layers)])
    training = Training(net, compose(freeze_prefix(beta=1e6)), SGD(), 20)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:

        def seconds(deadline: float) -> float:
            times = []
            for _ in range(3):
                begin = time.process_time()
                made = train(training, begun(training, deadline, shares, known), data)
                times.append(time.process_time() - begin)
            assert int(made.trained.sum()) == (4 if deadline > 1 else 1)
            return min(times)

        seconds(1e9)
        whole, frozen = seconds(1e9), seconds(1e-9)
    finally:
        torch.set_num_threads(before)
    assert (1 + 3 * float(shares[-1])) / 4 == pytest.approx(0.5, abs=0.05)
    assert frozen < 0.8 * whole


def test_the_server_learns_layers_and_times_only() -> None:
    """Client-oblivious: nothing of a client's speed or forecast goes up."""
    part = freeze_prefix()
    assert part.report is None
    assert part.encode is None
    assert part.keep is None


def test_selection_does_not_look_at_profiled_times() -> None:
    """The same draw whatever profiling says, or without it."""
    select = filled(reputation().select)
    s = {"utility": torch.tensor([0.2, 1.0, 3.0, 0.5, 2.0, 1.5]), "times": torch.zeros(6)}
    ids, n = torch.arange(6), torch.ones(6)
    for t in range(1, 30):
        rnd = at(t)._replace(cohort=2)
        known = select(s, rnd, Pool(ids, n, torch.tensor([9.0, 1.0, 5.0, 2.0, 7.0, 3.0])))
        other = select(s, rnd, Pool(ids, n, torch.tensor([1.0, 9.0, 2.0, 5.0, 3.0, 7.0])))
        assert known.tolist() == other.tolist() == select(s, rnd, Pool(ids, n)).tolist()
