"""Every baseline against its published algorithm: several rounds, unequal clients, a client lost in one round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from motley.methods import make_method
from motley.runtime.launch import Run
from motley.runtime.virtual_carrier import VirtualCarrier
from tests import tiny
from tests.equations.oracle import Oracle, Weights, add, dot, minus, times, total, zeros
from tests.protocol.world import events_of

ROUNDS, EPOCHS, LR, BATCH = 4, 2.0, 0.1, 4
LOST = (3, 2)  # client, round
WEAK = {0: 1.2, 2: 0.7, 4: 1.6}  # epochs these clients can afford


@dataclass
class World:
    """The oracle, who was chosen in each round, and who of them arrived after how many epochs."""

    oracle: Oracle
    cohorts: list[list[int]] = field(default_factory=list)
    partial: bool = False
    weak: dict[int, float] = field(default_factory=dict)

    def rounds(self) -> list[tuple[int, dict[int, float]]]:
        """(round, {client that arrives: epochs it trained})."""
        result = []
        for number, cohort in enumerate(self.cohorts, 1):
            arrived = {}
            for client in cohort:
                epochs = min(EPOCHS, self.weak.get(client, EPOCHS))
                if (client, number) != LOST and (self.partial or epochs == EPOCHS):
                    arrived[client] = epochs
            result.append((number, arrived))
        return result


def play(spec: str, *, weak: dict[int, float] | None = None, partial: bool = False) -> tuple[World, Run]:
    """Runs a method, and remembers who was chosen."""
    fleet = tiny.uneven_fleet().with_(fortune=(tiny.Affordable(weak or {}), tiny.Lost(LOST)))
    federated = tiny.data()
    net = tiny.network(federated)
    made = tiny.experiment(
        make_method(spec), fleet=fleet, federated=federated, net=net, rounds=ROUNDS, epochs=EPOCHS, cohort=5, lr=LR
    )
    run = Run(made)
    seen = events_of(run)
    run.go()
    given = [(event.round, event.client) for event in seen if event.what == "dispatch"]
    cohorts = [[client for at, client in given if at == number] for number in range(1, ROUNDS + 1)]
    world = World(Oracle(net.module, federated, seed=5, batch_size=BATCH, lr=LR), cohorts, partial, weak or {})
    assert any(LOST[0] in cohort for cohort in world.cohorts[LOST[1] - 1 : LOST[1]]), "the client to be lost must train"
    return world, run


def check(run: Run, expected: Weights, tolerance: float = 1e-6) -> None:
    flat = torch.cat([w.reshape(-1) for w in expected])
    worst = float((run.fed.weights.value - flat).abs().max())
    assert worst < tolerance, f"differs by {worst:.2e}"


def kept(run: Run, client: int, part: str) -> Tensor | None:
    assert isinstance(run.carrier, VirtualCarrier)
    state = run.carrier.store.get(client)
    return None if state is None else state[part]


def fedavg(world: World, mean: Callable[[dict[int, Weights]], Weights]) -> Weights:
    w, o = world.oracle.first, world.oracle
    for number, arrived in world.rounds():
        w = mean({k: o.sgd(w, k, number, epochs) for k, epochs in arrived.items()})
    return w


def test_fedavg_weighted() -> None:
    world, run = play("fedavg")
    check(run, fedavg(world, world.oracle.weighted_mean))


def test_fedavg_plain() -> None:
    world, run = play("fedavg(weighted=false)")
    check(run, fedavg(world, world.oracle.plain_mean))
    weighted, _ = play("fedavg")
    assert world.cohorts == weighted.cohorts


def test_fedavg_leaves_out_who_cannot_finish() -> None:
    world, run = play("fedavg", weak=WEAK)
    assert sum(len(arrived) for _, arrived in world.rounds()) < ROUNDS * 5 - 3
    check(run, fedavg(world, world.oracle.weighted_mean))


@pytest.mark.parametrize("mu", [0.01, 1.0])
def test_fedprox_with_partial_work(mu: float) -> None:
    """min_w F_k(w) + (mu / 2) ||w - w_t||^2, by as many steps as the device manages (Li et al., Algorithm 2)."""
    world, run = play(f"fedprox(mu={mu})", weak=WEAK, partial=True)
    o, w = world.oracle, world.oracle.first
    for number, arrived in world.rounds():
        received = w

        def term(v: Weights, at: Weights = received) -> Tensor:
            apart = minus(v, at)
            return mu / 2 * dot(apart, apart)

        w = o.weighted_mean({k: o.sgd(received, k, number, epochs, term=term) for k, epochs in arrived.items()})
    assert {epochs for _, arrived in world.rounds() for epochs in arrived.values()} == {2.0, 1.2, 0.7, 1.6}
    check(run, w)


def test_scaffold_option_two() -> None:
    """Karimireddy et al., Algorithm 1 with option II and a global step of 1; c_k of a lost client stays."""
    world, run = play("scaffold")
    o, x = world.oracle, world.oracle.first
    c, own = zeros(x), {k: zeros(x) for k in range(o.n_clients)}
    for number, arrived in world.rounds():
        models, changes = {}, []
        for k, epochs in arrived.items():

            def change(g: Weights, c_k: Weights = own[k], c_all: Weights = c) -> Weights:
                return add(minus(g, c_k), c_all)

            y = o.sgd(x, k, number, epochs, change=change)
            K = o.steps(k, epochs)
            c_plus = add(minus(own[k], c), times(minus(x, y), 1 / (K * LR)))
            changes.append(minus(c_plus, own[k]))
            models[k], own[k] = y, c_plus
        x = o.weighted_mean(models)
        c = add(c, times(total(changes), 1 / o.n_clients))
    check(run, x)
    for k in range(o.n_clients):
        flat = torch.cat([v.reshape(-1) for v in own[k]])
        held = kept(run, k, "control_variates")
        assert (torch.zeros_like(flat) if held is None else held).sub(flat).abs().max() < 5e-6


def test_feddyn() -> None:
    """Acar et al., Algorithm 1: plain mean, h over all clients of the population, own gradients of a lost one stay."""
    alpha = 0.1
    world, run = play(f"feddyn(alpha={alpha})")
    o, theta = world.oracle, world.oracle.first
    h, own = zeros(theta), {k: zeros(theta) for k in range(o.n_clients)}
    for number, arrived in world.rounds():
        models = {}
        for k, epochs in arrived.items():

            def term(v: Weights, at: Weights = theta, g: Weights = own[k]) -> Tensor:
                return alpha / 2 * dot(minus(v, at), minus(v, at)) - dot(g, v)

            models[k] = o.sgd(theta, k, number, epochs, term=term)
            own[k] = add(own[k], minus(models[k], theta), -alpha)
        h = add(h, total([minus(model, theta) for model in models.values()]), -alpha / o.n_clients)
        theta = add(o.plain_mean(models), h, -1 / alpha)
    check(run, theta, 2e-6)
    for k in range(o.n_clients):
        flat = torch.cat([v.reshape(-1) for v in own[k]])
        held = kept(run, k, "dynamic_regulariser")
        assert (torch.zeros_like(flat) if held is None else held).sub(flat).abs().max() < 1e-6


def test_feddyn_counts_every_client_alike_beside_plain_averaging() -> None:
    together, alone = play("fedavg(weighted=false)+feddyn")[1], play("feddyn")[1]
    assert torch.equal(together.fed.weights.value, alone.fed.weights.value)


def test_fedavgm() -> None:
    """Hsu et al.: v = beta v + delta, w = w + lr v."""
    world, run = play("fedavgm(beta=0.7, lr=0.9)")
    o, w = world.oracle, world.oracle.first
    v = zeros(w)
    for number, arrived in world.rounds():
        delta = minus(o.weighted_mean({k: o.sgd(w, k, number, e) for k, e in arrived.items()}), w)
        v = add(times(v, 0.7), delta)
        w = add(w, times(v, 0.9))
    check(run, w)


SECOND: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "fedadam": lambda v, d, beta2: beta2 * v + (1 - beta2) * d**2,
    "fedyogi": lambda v, d, beta2: v - (1 - beta2) * d**2 * torch.sign(v - d**2),
    "fedadagrad": lambda v, d, beta2: v + d**2,
}


@pytest.mark.parametrize("name", sorted(SECOND))
def test_adaptive_server_optimizers(name: str) -> None:
    """Reddi et al., Algorithm 2: v_{-1} = tau^2, x = x + eta m / (sqrt(v) + tau)."""
    eta, beta1, beta2, tau = 0.02, 0.8, 0.95, 1e-2
    extra = "" if name == "fedadagrad" else f", beta2={beta2}"
    world, run = play(f"{name}(lr={eta}, beta1={beta1}, tau={tau}{extra})")
    o, x = world.oracle, world.oracle.first
    m, v = zeros(x), [torch.full_like(w, tau**2) for w in x]
    for number, arrived in world.rounds():
        delta = minus(o.weighted_mean({k: o.sgd(x, k, number, e) for k, e in arrived.items()}), x)
        m = add(times(m, beta1), times(delta, 1 - beta1))
        v = [SECOND[name](a, d, beta2) for a, d in zip(v, delta, strict=True)]
        x = [w + eta * a / (b.sqrt() + tau) for w, a, b in zip(x, m, v, strict=True)]
    check(run, x)


def test_adaptive_mixing() -> None:
    """AMA, eq. 5: w_t = alpha_t w_{t-1} + (1 - alpha_t) sum_k |D_k| / |D| w_k, alpha_t = min(alpha0 + eta t, max)."""
    world, run = play("ama(alpha0=0.2, eta=0.15, maximum=0.6)")
    o, w = world.oracle, world.oracle.first
    for number, arrived in world.rounds():
        alpha = min(0.2 + 0.15 * number, 0.6)
        fresh = o.weighted_mean({k: o.sgd(w, k, number, e) for k, e in arrived.items()})
        w = add(times(w, alpha), times(fresh, 1 - alpha))
    check(run, w)


def test_two_methods_at_once() -> None:
    """fedprox+ama: the proximal term on the client, mixing on the server."""
    world, run = play("fedprox(mu=0.5)+ama(alpha0=0.3, eta=0.0)", weak=WEAK, partial=True)
    o, w = world.oracle, world.oracle.first
    for number, arrived in world.rounds():

        def term(v: Weights, at: Weights = w) -> Tensor:
            return 0.25 * dot(minus(v, at), minus(v, at))

        fresh = o.weighted_mean({k: o.sgd(w, k, number, e, term=term) for k, e in arrived.items()})
        w = add(times(w, 0.3), times(fresh, 0.7))
    check(run, w)


def ternary(change: Weights, share: float) -> Weights:
    """Sattler et al., Algorithm 1, on the flat vector, entry by entry: mu sign(T) on the k largest, else 0."""
    flat = [float(v) for tensor in change for v in tensor.reshape(-1)]
    k = max(1, math.ceil(share * len(flat)))
    largest = sorted(range(len(flat)), key=lambda i: (-abs(flat[i]), i))[:k]
    mu = sum(abs(flat[i]) for i in largest) / k
    made = [0.0] * len(flat)
    for i in largest:
        made[i] = mu if flat[i] > 0 else -mu
    whole, result, begin = torch.tensor(made), [], 0
    for tensor in change:
        result.append(whole[begin : begin + tensor.numel()].reshape(tensor.shape))
        begin += tensor.numel()
    return result


def test_sparse_ternary_compression() -> None:
    """Sattler et al., Algorithm 2: both ends remember what they did not send; a lost client's memory stays."""
    share, share_down = 0.1, 0.2
    world, run = play(f"stc(share={share}, share_down={share_down})")
    o, w = world.oracle, world.oracle.first
    left, own = zeros(w), {k: zeros(w) for k in range(o.n_clients)}
    for number, arrived in world.rounds():
        sent = {}
        for k, epochs in arrived.items():
            wanted = add(minus(o.sgd(w, k, number, epochs), w), own[k])
            sent[k] = ternary(wanted, share)
            own[k] = minus(wanted, sent[k])
        wanted = add(times(total(list(sent.values())), 1 / len(sent)), left)
        moved = ternary(wanted, share_down)
        left, w = minus(wanted, moved), add(w, moved)
    check(run, w)
    for k in range(o.n_clients):
        flat = torch.cat([v.reshape(-1) for v in own[k]])
        held = kept(run, k, "sparse_ternary")
        assert (torch.zeros_like(flat) if held is None else held).sub(flat).abs().max() < 5e-6
