"""What a model costs: floating-point operations and bytes per layer, counted once per network.

A multiplication and an addition are two operations. Layers with parameters are counted; activations, pooling and
biases, a few percent of the whole, are not. Training one sample costs

    sum_l forward_l  +  sum_{l trained} backward_weight_l  +  sum_{l > first trained} backward_input_l

so a frozen prefix saves its whole backward pass, and freezing the head alone saves only its weight gradient.
Layers that the module itself freezes (``requires_grad=False``) cost the same as layers that a method freezes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from motley.core.bill import Cost
from motley.core.errors import InputError
from motley.core.network import Network
from motley.nets.lstm import LSTMLayer


class Flops(NamedTuple):
    """Operations of one layer for one sample."""

    forward: float
    backward_input: float
    backward_weight: float


Rule = Callable[[Any, Tensor, Tensor], Flops]


def _linear(m: nn.Linear, x: Tensor, y: Tensor) -> Flops:
    once = 2.0 * m.in_features * m.out_features * prod(x.shape[1:-1])
    return Flops(once, once, once)


def _conv(m: nn.Conv2d, x: Tensor, y: Tensor) -> Flops:
    once = 2.0 * m.weight.numel() * prod(y.shape[2:])
    return Flops(once, once, once)


def _embedding(m: nn.Embedding, x: Tensor, y: Tensor) -> Flops:
    return Flops(0.0, 0.0, 0.0)


def _lstm(m: LSTMLayer, x: Tensor, y: Tensor) -> Flops:
    """The gradient runs back through the hidden states in any case; only that of the input can be spared."""
    from_input = 2.0 * m.weight_input.numel() * x.shape[1]
    from_hidden = 2.0 * m.weight_hidden.numel() * x.shape[1]
    return Flops(from_input + from_hidden, from_input, from_input + 2 * from_hidden)


def _norm(m: nn.Module, x: Tensor, y: Tensor) -> Flops:
    """Mean, variance, scaling and shift: about five operations a number, as many backwards, two for the weights."""
    size = prod(x.shape[1:])
    return Flops(5.0 * size, 5.0 * size, 2.0 * size)


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.Embedding: _embedding,
    LSTMLayer: _lstm,
    nn.GroupNorm: _norm,
    nn.LayerNorm: _norm,
    _BatchNorm: _norm,
}
"""How each kind of layer is counted: ``rule(module, input, output) -> Flops`` for one sample; subclasses inherit it."""


def cost_of(net: Network, sample_x: Tensor) -> Cost:
    """Counts a network's operations with one forward pass of the first sample of ``sample_x`` [B, ...].

    A layer of a kind without a rule counts as 2 operations per parameter, with a sentence in ``notes``.
    """
    owners = {name: module for name, module in net.module.named_modules() if module._parameters}
    calls = _counted(net, owners, sample_x[:1])
    notes = _estimated(net, owners, calls)
    trained = {layer.name: layer.order for layer in net.layout.layers}
    rows = [[0.0, 0.0, 0.0] for _ in trained]
    frozen, waiting = 0.0, 0.0
    for name, counted in calls:
        if name not in trained:
            frozen, waiting = frozen + counted.forward, waiting + counted.backward_input
            continue
        row = rows[trained[name]]
        row[0] += counted.forward
        row[1] += counted.backward_input + waiting
        row[2] += counted.backward_weight * _share_trained(owners[name])
        waiting = 0.0
    forward, backward_input, backward_weight = (tuple(column) for column in zip(*rows, strict=True))
    sizes = tuple(4 * layer.size for layer in net.layout.layers)
    return Cost(forward, backward_input, backward_weight, sizes, notes, frozen, waiting)


def _counted(net: Network, owners: dict[str, nn.Module], sample: Tensor) -> list[tuple[str, Flops]]:
    """The layers with a rule as they are called in a forward pass, and what each of them computes."""
    calls: list[tuple[str, Flops]] = []
    hooks = [
        module.register_forward_hook(_counter(calls, name, rule))
        for name, module in owners.items()
        if (rule := _rule(module)) is not None
    ]
    device = next(net.module.parameters()).device
    try:
        with torch.no_grad():
            net(net.initial().to(device), sample.to(device))
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _estimated(net: Network, owners: dict[str, nn.Module], calls: list[tuple[str, Flops]]) -> tuple[str, ...]:
    """Adds the trained layers of which nothing was counted to ``calls``; what is to be said of them."""
    notes = []
    for layer in net.layout.layers:
        if not any(name == layer.name for name, _ in calls):
            notes.append(
                f"No rule counts the operations of layer '{layer.name}' ({type(owners[layer.name]).__name__}); taken "
                "as 2 per parameter, add a rule to motley.nets.cost.RULES for better."
            )
            calls.append((layer.name, Flops(2.0 * layer.size, 2.0 * layer.size, 2.0 * layer.size)))
    return tuple(notes)


def _share_trained(module: nn.Module) -> float:
    """The share of a layer's own parameters that are trained."""
    sizes = [(one.numel(), one.requires_grad) for one in module.parameters(recurse=False)]
    return sum(size for size, moves in sizes if moves) / max(1, sum(size for size, _ in sizes))


def _rule(module: nn.Module) -> Rule | None:
    return next((RULES[kind] for kind in type(module).__mro__ if kind in RULES), None)


def _counter(
    calls: list[tuple[str, Flops]], name: str, rule: Rule
) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
    def count(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        calls.append((name, rule(module, inputs[0], output)))

    return count


def flops_of_mask(cost: Cost, trained: Sequence[float]) -> float:
    """Operations to train one sample when only the layers with ``trained[l] > 0`` change."""
    if len(trained) != cost.n_layers:
        raise InputError(
            f"The mask of trained layers has {len(trained)} entries, the model has {cost.n_layers} layers."
        )
    on = [float(t) > 0 for t in trained]
    first = on.index(True) if any(on) else cost.n_layers
    weights = sum(c for c, t in zip(cost.backward_weight, on, strict=True) if t)
    after = cost.frozen_after if any(on) else 0.0
    return cost.whole_forward + weights + sum(cost.backward_input[first + 1 :]) + after


def flops(cost: Cost, frozen_prefix: int = 0) -> float:
    """Operations to train one sample when the first ``frozen_prefix`` layers stay as they are."""
    if not 0 <= frozen_prefix <= cost.n_layers:
        raise InputError(f"Between 0 and {cost.n_layers} layers can be frozen, not {frozen_prefix}.")
    return flops_of_mask(cost, [float(i >= frozen_prefix) for i in range(cost.n_layers)])
