"""Local optimizers as pure functions of flat vectors; they match `torch.optim` step for step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from motley.core.acceleration import kernel_for
from motley.core.errors import InputError, TogetherError, UnknownNameError
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
    """Adam with bias correction; weight decay is added to the gradient as in `torch.optim.Adam`.

    decoupled: it shrinks the weights instead, as in `torch.optim.AdamW`.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def init(self, params: Tensor) -> Tree:
        zero = torch.zeros_like(params)
        return {"m": zero, "v": zero.clone(), "t": torch.zeros((), device=params.device)}

    def step(self, state: Tree, params: Tensor, grad: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        if self.weight_decay and self.decoupled:
            params = params - lr * self.weight_decay * params
        elif self.weight_decay:
            grad = grad + self.weight_decay * params
        t = state["t"] + 1.0
        m = self.beta1 * state["m"] + (1 - self.beta1) * grad
        v = self.beta2 * state["v"] + (1 - self.beta2) * grad * grad
        m_hat = m / (1 - self.beta1**t)
        v_hat = v / (1 - self.beta2**t)
        return params - lr * m_hat / (v_hat.sqrt() + self.eps), {"m": m, "v": v, "t": t}

    def step_(self, state: Tree, params: Tensor, grad: Tensor, lr: Tensor) -> None:
        if self.weight_decay and self.decoupled:
            params.mul_(1.0 - lr * self.weight_decay)
        elif self.weight_decay:
            grad = torch.add(grad, params, alpha=self.weight_decay)
        t = state["t"].add_(1.0)[:, None]
        m = state["m"].mul_(self.beta1).add_(grad, alpha=1 - self.beta1)
        v = state["v"].mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        root = (v / (1 - self.beta2**t)).sqrt_().add_(self.eps)
        params.sub_(lr / (1 - self.beta1**t) * m / root)


@dataclass(frozen=True)
class Scaled:
    """Steps divided by the root of squares: ``v = decay * v + share * g^2;  w = w - lr * g / (sqrt(v) + eps)``.

    RMSprop with ``share = 1 - decay``, Adagrad with ``decay = share = 1``.
    """

    decay: float
    share: float
    eps: float
    weight_decay: float = 0.0
    momentum: float = 0.0

    def init(self, params: Tensor) -> Tree:
        found = {"v": torch.zeros_like(params)}
        return {**found, "velocity": torch.zeros_like(params)} if self.momentum else found

    def step(self, state: Tree, params: Tensor, grad: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        if self.weight_decay:
            grad = torch.add(grad, params, alpha=self.weight_decay)
        now = {"v": self.decay * state["v"] + self.share * grad * grad}
        move = grad / (now["v"].sqrt() + self.eps)
        if self.momentum:
            move = now["velocity"] = self.momentum * state["velocity"] + move
        return params - lr * move, now

    def step_(self, state: Tree, params: Tensor, grad: Tensor, lr: Tensor) -> None:
        if self.weight_decay:
            grad = torch.add(grad, params, alpha=self.weight_decay)
        v = state["v"].mul_(self.decay).addcmul_(grad, grad, value=self.share)
        move = grad / v.sqrt().add_(self.eps)
        if self.momentum:
            move = state["velocity"].mul_(self.momentum).add_(move)
        params.addcmul_(move, lr, value=-1.0)


UNFIT = {
    "Optimizer": "is what all of them are made of",
    "LBFGS": "asks for the loss several times in a step",
    "SparseAdam": "takes sparse gradients alone",
}
"""What of `torch.optim` cannot take a step from one gradient."""


class OfTorch:
    """Any optimizer of `torch.optim`, on the whole vector; its state is torch's own, so clients train one by one."""

    together = False

    def __init__(self, name: str, **arguments: Any) -> None:
        known = [one for one in dir(torch.optim) if one[0].isupper() and one not in UNFIT]
        if name in UNFIT:
            raise InputError(f"The optimizer '{name}' of torch.optim {UNFIT[name]}; take {', '.join(known)}.")
        if name not in known:
            raise UnknownNameError("optimizer in torch.optim", name, known)
        kind = getattr(torch.optim, name)
        self.kind: Any = kind
        self.arguments = arguments
        self.init(torch.zeros(1))  # refuses wrong arguments

    def __repr__(self) -> str:
        inner = "".join(f", {key}={value!r}" for key, value in sorted(self.arguments.items()))
        return f"torch_optim(name={self.kind.__name__!r}{inner})"

    def init(self, params: Tensor) -> Tree:
        moving = torch.nn.Parameter(params.detach().clone())
        try:
            return {"moving": moving, "optimizer": self.kind([moving], lr=1.0, **self.arguments)}
        except (TypeError, ValueError) as error:
            raise InputError(f"The optimizer '{self!r}' cannot be made: {error}.") from None

    def step(self, state: Tree, params: Tensor, grad: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        moving, optimizer = state["moving"], state["optimizer"]
        moving.data.copy_(params)
        moving.grad = grad
        for group in optimizer.param_groups:
            group["lr"] = float(lr)
        with torch.enable_grad():
            optimizer.step()
        return moving.detach().clone(), state

    def step_(self, state: Tree, params: Tensor, grad: Tensor, lr: Tensor) -> None:
        raise TogetherError(f"The optimizer '{self!r}' cannot train many clients as one; use executor=loop or pool.")


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


@OPTIMIZERS.add()
def adamw(beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.01) -> Optimizer:
    """Adam whose weight decay shrinks the weights by itself (Loshchilov and Hutter, 2019)."""
    return Adam(beta1, beta2, eps, weight_decay, decoupled=True)


@OPTIMIZERS.add()
def rmsprop(alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0.0, momentum: float = 0.0) -> Optimizer:
    """Steps divided by the root of a running mean of squared gradients."""
    return Scaled(alpha, 1.0 - alpha, eps, weight_decay, momentum)


@OPTIMIZERS.add()
def adagrad(eps: float = 1e-10, weight_decay: float = 0.0) -> Optimizer:
    """Steps divided by the root of the sum of squared gradients."""
    return Scaled(1.0, 1.0, eps, weight_decay)


@OPTIMIZERS.add()
def torch_optim(name: str = "NAdam", **arguments: Any) -> Optimizer:
    """Any optimizer of torch.optim by its name, with its own arguments; loop and pool only."""
    return OfTorch(name, **arguments)


def make_optimizer(spec: str) -> Optimizer:
    """An optimizer from its short form, such as ``sgd(momentum=0.9)``."""
    (call,) = parse(spec, "optimizer")
    return OPTIMIZERS.make(call.name, **call.arguments)
