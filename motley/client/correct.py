"""What happens to a client's gradient before it moves the model."""

from __future__ import annotations

import torch
from torch import Tensor

from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.ranges import Positive
from motley.core.types import Client, Data, Facts, Mine, Round, Setting, Tree, Updates


@part("correct")
def control_variates() -> Part:
    """Corrects client drift by the difference of control variates, g - c_k + c (SCAFFOLD, option II).

    Client: ``c_k+ = c_k - c + (w_t - w_k) / (steps * lr)``. Server: ``c = c + sum_k (c_k+ - c_k) / N``.
    """

    def init(setting: Setting) -> Tree:
        return {"c": torch.zeros_like(setting.params), "n_clients": torch.tensor(float(setting.n_clients))}

    def send(s: Tree, rnd: Round) -> Tree:
        return s["c"]

    def keep(net: Network, start: Tensor, facts: Facts) -> Tree:
        return torch.zeros_like(start)

    def gradient(c: Client, me: Mine, grad: Tensor) -> Tensor:
        return grad - me.own + me.down

    def report(c: Client, me: Mine, data: Data) -> tuple[Client, Tree]:
        change = (c.start - c.params) / (c.facts.steps * c.facts.lr) - me.down
        change = change * c.net.layout.expand(c.trained)
        return me.keep(c, me.own + change), change

    def observe(s: Tree, rnd: Round, updates: Updates) -> Tree:
        return {**s, "c": s["c"] + updates.extra.sum(0) / s["n_clients"]}

    return Part(init=init, send=send, keep=keep, gradient=gradient, report=report, observe=observe)


@part("correct", neutral={"norm": float("inf")}, example={"norm": 0.1})
def clip_gradient(norm: Positive = 10.0) -> Part:
    """Scales a minibatch gradient down to a largest Euclidean norm."""

    def gradient(c: Client, me: Mine, grad: Tensor) -> Tensor:
        return grad * (norm / grad.norm().clamp_min(1e-12)).clamp_max(1.0)

    return Part(gradient=gradient)
