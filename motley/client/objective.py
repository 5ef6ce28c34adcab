"""Terms of the local loss."""

from __future__ import annotations

import torch
from torch import Tensor

from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.ranges import NotNegative, NotNegativeSchedule
from motley.core.types import Batch, Client, Data, Facts, Mine, Output, Round, Setting, Tree, Updates


@part("objective", neutral={"mu": 0.0}, example={"mu": 1.0})
def proximal(mu: NotNegativeSchedule = 0.01) -> Part:
    """Pulls the local model towards the received one: (mu / 2) * ||w - w_t||^2 (FedProx)."""

    def penalty(c: Client, me: Mine, batch: Batch, out: Output) -> Tensor:
        return 0.5 * me.dials["mu"] * (c.params - c.start).square().sum()

    return Part(penalty=penalty, dials={"mu": mu})


@part("objective", example={"alpha": 0.1})
def dynamic_regulariser(alpha: NotNegative = 0.01) -> Part:
    """Aligns local optima with the global one by a linear and a proximal term (FedDyn, Acar et al., Algorithm 1).

    Client: ``loss - <h_k, w> + (alpha / 2) * ||w - w_t||^2``, then ``h_k = h_k - alpha * (w_k - w_t)``.
    Server: ``h = h - (alpha / N) * sum_k (w_k - w_t)``; next model ``mean(w_k) - h / alpha``.
    The published algorithm averages the arrived models without weights: compose it with `plain_mean`.
    """

    def keep(net: Network, start: Tensor, facts: Facts) -> Tree:
        return torch.zeros_like(start)

    def penalty(c: Client, me: Mine, batch: Batch, out: Output) -> Tensor:
        return 0.5 * alpha * (c.params - c.start).square().sum() - (me.own * c.params).sum()

    def report(c: Client, me: Mine, data: Data) -> tuple[Client, None]:
        return me.keep(c, me.own - alpha * (c.params - c.start)), None

    def init(setting: Setting) -> Tree:
        return {"h": torch.zeros_like(setting.params), "n_clients": torch.tensor(float(setting.n_clients))}

    def step(s: Tree, rnd: Round, old: Tensor, new: Tensor, updates: Updates) -> tuple[Tensor, Tree]:
        h = s["h"] - alpha / s["n_clients"] * updates.delta.sum(0)
        return new - h / alpha, {**s, "h": h}

    return Part(init=init, keep=keep, penalty=penalty, report=report, step=step)
