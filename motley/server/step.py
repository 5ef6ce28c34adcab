"""How the global model moves once the updates are merged. ``new - old`` is the step a server optimizer sees."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from motley.core.part import Part, part
from motley.core.ranges import NotNegative, NotNegativeSchedule, Share, ShareSchedule
from motley.core.schedule import Schedule
from motley.core.types import Round, Setting, Tree, Updates


@part("step", neutral={"alpha": 0.0}, example={"alpha": 0.5})
def mix_with_previous(alpha: ShareSchedule = 0.1, slope: NotNegative = 0.0, maximum: Share = 0.95) -> Part:
    """Mixes the merged model with the previous global one: alpha * old + (1 - alpha) * new (AMA, eq. 5).

    ``alpha_t = min(alpha + slope * t, maximum)`` in round t = 1, 2, ...
    """

    def step(s: Tree, rnd: Round, old: Tensor, new: Tensor, updates: Updates) -> tuple[Tensor, Tree]:
        a = min(rnd.dials["alpha"] + slope * rnd.number, maximum)
        return a * old + (1.0 - a) * new, s

    return Part(step=step, dials={"alpha": alpha})


@part("step", neutral={"beta": 0.0, "lr": 1.0}, example={"beta": 0.9})
def server_momentum(beta: Share = 0.9, lr: NotNegativeSchedule = 1.0) -> Part:
    """Heavy-ball momentum on the merged change: v = beta * v + delta; w = w + lr * v (FedAvgM)."""

    def init(setting: Setting) -> Tree:
        return {"velocity": torch.zeros_like(setting.params)}

    def step(s: Tree, rnd: Round, old: Tensor, new: Tensor, updates: Updates) -> tuple[Tensor, Tree]:
        if beta == 0.0 and lr == 1.0:
            return new, s
        velocity = beta * s["velocity"] + (new - old)
        return old + rnd.dials["lr"] * velocity, {"velocity": velocity}

    return Part(init=init, step=step, dials={"lr": lr})


def _adaptive(
    second: Callable[[Tensor, Tensor], Tensor], lr: Schedule, beta1: float, tau: float, v0: float | None
) -> Part:
    """Adaptive server optimizers of Reddi et al. (Algorithm 2); they differ in the second moment alone.

    ``v0`` is what the second moment starts from; None: tau^2.
    """

    def init(setting: Setting) -> Tree:
        zero = torch.zeros_like(setting.params)
        return {"m": zero, "v": torch.full_like(zero, tau * tau if v0 is None else v0)}

    def step(s: Tree, rnd: Round, old: Tensor, new: Tensor, updates: Updates) -> tuple[Tensor, Tree]:
        delta = new - old
        m = beta1 * s["m"] + (1 - beta1) * delta
        v = second(s["v"], delta)
        return old + rnd.dials["lr"] * m / (v.sqrt() + tau), {"m": m, "v": v}

    return Part(init=init, step=step, dials={"lr": lr})


@part("step")
def server_adam(
    lr: NotNegativeSchedule = 0.01,
    beta1: Share = 0.9,
    beta2: Share = 0.99,
    tau: NotNegative = 1e-3,
    v0: NotNegative | None = None,
) -> Part:
    """Adam on the merged change (FedAdam): w = w + lr * m / (sqrt(v) + tau), v0 = tau^2, no bias correction."""
    return _adaptive(lambda v, d: beta2 * v + (1 - beta2) * d * d, lr, beta1, tau, v0)


@part("step")
def server_yogi(
    lr: NotNegativeSchedule = 0.01,
    beta1: Share = 0.9,
    beta2: Share = 0.99,
    tau: NotNegative = 1e-3,
    v0: NotNegative | None = None,
) -> Part:
    """Yogi on the merged change (FedYogi): v moves towards delta^2 by at most (1 - beta2) * delta^2."""
    return _adaptive(lambda v, d: v - (1 - beta2) * d * d * torch.sign(v - d * d), lr, beta1, tau, v0)


@part("step")
def server_adagrad(
    lr: NotNegativeSchedule = 0.01, beta1: Share = 0.0, tau: NotNegative = 1e-3, v0: NotNegative | None = None
) -> Part:
    """Adagrad on the merged change (FedAdagrad): v = v + delta^2."""
    return _adaptive(lambda v, d: v + d * d, lr, beta1, tau, v0)
