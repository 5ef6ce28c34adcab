"""Local optimizers as pure functions of flat vectors; they match `torch.optim` step for step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from motley.core.acceleration import kernel_for
from motley.core.problem import Turns
from motley.core.registry import Registry, parse
from motley.core.types import Tree
from motley.core.vmapped import is_vmapped

OPTIMIZERS: Registry[Optimizer] = Registry("optimizer")


class Optimizer(Protocol):
    """``init`` makes the state of one task; ``step`` moves the parameters."""

    def init(self, params: Tensor) -> Tree: ...

    def step(self, state: Tree, params: Tensor, grad: Tensor, lr: Tensor) -> tuple[Tensor, Tree]: ...

    def step_(self, state: Tree, params: Tensor, grad: Tensor, lr: Tensor) -> None:
        """`step` in place, for many clients at once: params, grad and state [K, ...], lr [K, 1]."""


@dataclass(frozen=True)
class SGD:
    """``v = momentum * v + (g + weight_decay * w);  w = w - lr * v``."""

    momentum: float = 0.0
    weight_decay: float = 0.0

    def init(self, params: Tensor) -> Tree:
        return {"velocity": torch.zeros_like(params)} if self.momentum else {}

    def step(self, state: Tree, params: Tensor, grad: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        if self.weight_decay:
            grad = torch.add(grad, params, alpha=self.weight_decay)
        if self.momentum:
            grad = torch.add(grad, state["velocity"], alpha=self.momentum)
            state = {"velocity": grad}
        return torch.addcmul(params, grad, lr, value=-1.0), state

    def step_(self, state: Tree, params: Tensor, grad: Tensor, lr: Tensor) -> None:
        run = kernel_for("sgd", params)
        if run is not None:
            run(params, state.get("velocity"), grad, lr, self.momentum, self.weight_decay)
            return
        if self.weight_decay:
            grad = torch.add(grad, params, alpha=self.weight_decay)
        if self.momentum:
            grad = state["velocity"].mul_(self.momentum).add_(grad)
        params.addcmul_(grad, lr, value=-1.0)


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction; weight decay is added to the gradient as in `torch.optim.Adam`."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def init(self, params: Tensor) -> Tree:
        zero = torch.zeros_like(params)
        return {"m": zero, "v": zero.clone(), "t": torch.zeros((), device=params.device)}

    def step(self, state: Tree, params: Tensor, grad: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        if self.weight_decay:
            grad = grad + self.weight_decay * params
        t = state["t"] + 1.0
        m = self.beta1 * state["m"] + (1 - self.beta1) * grad
        v = self.beta2 * state["v"] + (1 - self.beta2) * grad * grad
        m_hat = m / (1 - self.beta1**t)
        v_hat = v / (1 - self.beta2**t)
        return params - lr * m_hat / (v_hat.sqrt() + self.eps), {"m": m, "v": v, "t": t}

    def step_(self, state: Tree, params: Tensor, grad: Tensor, lr: Tensor) -> None:
        if self.weight_decay:
            grad = torch.add(grad, params, alpha=self.weight_decay)
        t = state["t"].add_(1.0)[:, None]
        m = state["m"].mul_(self.beta1).add_(grad, alpha=1 - self.beta1)
        v = state["v"].mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        root = (v / (1 - self.beta2**t)).sqrt_().add_(self.eps)
        params.sub_(lr / (1 - self.beta1**t) * m / root)


@dataclass(frozen=True)
class InTurns:
    """Several players in one flat vector: in each step one of them moves, with an optimizer's state of its own."""

    inner: Optimizer
    turns: Turns

    def init(self, params: Tensor) -> Tree:
        states = [self.inner.init(params[player]) for player in self.turns.players]
        return {"step": torch.zeros((), dtype=torch.int64, device=params.device), "players": states}

    def step(self, state: Tree, params: Tensor, grad: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        whose = self.turns.whose(state["step"])
        players, rates = self.turns.players, self.turns.rates
        states, new = list(state["players"]), params.clone()
        alone = None if is_vmapped(whose) or is_vmapped(params) else int(whose)
        for i, (player, rate) in enumerate(zip(players, rates, strict=True)):
            if alone not in (None, i):
                continue
            moved, fresh = self.inner.step(states[i], params[player], grad[player], lr * rate)
            if alone is None:
                moved = torch.where(whose == i, moved, params[player])
                fresh = tree_map(lambda now, old, i=i: torch.where(whose == i, now, old), fresh, states[i])
            new[player], states[i] = moved, fresh
        return new, {"step": state["step"] + 1, "players": states}

    def step_(self, state: Tree, params: Tensor, grad: Tensor, lr: Tensor) -> None:
        moved, fresh = vmap(self.step)(state, params, grad, lr[:, 0])
        params.copy_(moved)
        tree_map(lambda old, new: old.copy_(new), state, fresh)


def in_turns(optimizer: Optimizer, turns: Turns | None) -> Optimizer:
    """An optimizer as it is, or one for each of several players."""
    return optimizer if turns is None else InTurns(optimizer, turns)


@OPTIMIZERS.add()
def sgd(momentum: float = 0.0, weight_decay: float = 0.0) -> Optimizer:
    """Stochastic gradient descent with momentum and weight decay."""
    return SGD(momentum, weight_decay)


@OPTIMIZERS.add()
def adam(beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0) -> Optimizer:
    """Adam, started anew for every task."""
    return Adam(beta1, beta2, eps, weight_decay)


def make_optimizer(spec: str) -> Optimizer:
    """An optimizer from its short form, such as ``sgd(momentum=0.9)``."""
    (call,) = parse(spec, "optimizer")
    return OPTIMIZERS.make(call.name, **call.arguments)
