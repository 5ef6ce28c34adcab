"""Freezing layers while training, by a client's own decision (FreezeFL, Chou et al.)."""

from __future__ import annotations

import torch
from torch import Tensor

from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.ranges import NotNegative, Positive, Share
from motley.core.types import Client, Facts, Mine, Round, Setting, Tree, Updates


@part("trainable", neutral={"beta": 0.0}, example={"beta": 50.0, "deadline": 1e-6})
def freeze_prefix(beta: NotNegative = 4.0, deadline: Positive | None = None, ema: Share = 0.5) -> Part:
    """Slow clients freeze their first layers after one epoch, weighing importance against time (FreezeFL, eq. 1-3).

    Server: sends the soft deadline ``T = ema T + (1 - ema) mean_k(t_k)`` over the times between dispatch and arrival
    that it sees itself. It learns nothing else but which layers came back. The first deadline is a choice of the user's
    in the paper; without one here, nobody freezes before the first arrivals.
    Client: after its first epoch, ``P_l = mean |w - w_l|`` per layer; it freezes the first n layers for the n in
    0..L-1 that maximises ``sum_{l>n} P_l * (T / tau_n)^beta`` (the factor only where tau_n > T), takes their received
    weights back, trains the others on, and sends those alone. tau_n is its own forecast: download, one whole epoch, the
    other epochs without the frozen layers' backward pass, upload of the rest.
    """

    def init(setting: Setting) -> Tree:
        cost = setting.frozen_cost if setting.frozen_cost is not None else torch.ones(setting.net.n_layers)
        start = torch.tensor(float("inf") if deadline is None else float(deadline))
        return {"deadline": start.to(setting.params.device), "cost": cost.to(setting.params.device)}

    def send(s: Tree, rnd: Round) -> Tree:
        return s

    def epoch(c: Client, me: Mine) -> Client:
        importance = layer_importance(c.net, c.start, c.params)
        seconds = forecast(c.net, c.facts, me.down["cost"])
        frozen = layers_to_freeze(importance, seconds, me.down["deadline"], beta)
        layers = torch.arange(c.net.n_layers, device=c.params.device)
        trained = torch.where(c.epoch == 1.0, c.trained * (layers >= frozen), c.trained)
        params = torch.where(c.net.layout.expand(trained) > 0, c.params, c.start)
        return c.with_(trained=trained, params=params)

    def observe(s: Tree, rnd: Round, updates: Updates) -> Tree:
        seen = updates.duration.mean()
        return {**s, "deadline": torch.where(torch.isinf(s["deadline"]), seen, ema * s["deadline"] + (1 - ema) * seen)}

    return Part(init=init, send=send, epoch=epoch, observe=observe)


def layer_importance(net: Network, start: Tensor, params: Tensor) -> Tensor:
    """``P_l = ||w^l - w^{k,l}||_1 / dim(w^l)`` (eq. 2): [L]."""
    return net.layout.per_layer_sum((params - start).abs()) / net.layout.layer_sizes.to(params.device)


def forecast(net: Network, facts: Facts, cost: Tensor) -> Tensor:
    """``tau_n``: seconds of the whole task when the first n = 0..L-1 layers are frozen after one epoch: [L]."""
    first = facts.epochs.clamp_max(1.0)
    compute = facts.speed * (first + (facts.epochs - first) * cost)
    sizes = net.layout.layer_sizes.to(cost)
    kept = 1.0 - (sizes.cumsum(0) - sizes) / sizes.sum()
    return facts.download + compute + facts.upload * kept


def layers_to_freeze(importance: Tensor, seconds: Tensor, deadline: Tensor, beta: float) -> Tensor:
    """The n that maximises eq. 3 (the smallest of equals), from [L], [L] and the soft deadline: 0-d int64.

    Compared as logarithms, so that a huge beta means "as fast as can be" rather than 0 everywhere.
    """
    left = importance.flip(0).cumsum(0).flip(0)
    late = torch.log(torch.where(deadline < seconds, deadline / seconds, torch.ones_like(seconds)))
    score = torch.log(left) + min(beta, 1e9) * late
    best = score >= score.max()
    return (best.to(torch.int64).cumsum(0) == 0).sum().clamp_max(len(importance) - 1)
