"""Narrower versions of a network: the first units of every hidden layer (HeteroFL, FjORD).

A network of width p keeps the first ceil(p * n) of a hidden layer's n units, with all inputs and all classes. Every
parameter has one number, the width at which it appears; those below p make up the network of width p. With the other
parameters at zero the whole network computes what the narrow one would, because ReLU(0) = tanh(0) = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from motley.core.errors import InputError
from motley.core.network import Network
from motley.nets.lstm import LSTMLayer


class Units(NamedTuple):
    """Where each output of a layer begins to exist, as a width in [0, 1): [n]."""

    first: Tensor

    @classmethod
    def hidden(cls, n: int) -> Units:
        return cls(torch.arange(n, dtype=torch.float32) / n)

    @classmethod
    def always(cls, n: int) -> Units:
        return cls(torch.zeros(n))

    def spread(self, n: int, layer: str) -> Tensor:
        """As the inputs of a layer that sees ``n`` numbers: several in a row for each unit (pixels of a channel)."""
        if n % len(self.first):
            raise _cannot(layer, f"its {n} inputs do not follow from the {len(self.first)} outputs before it")
        return self.first.repeat_interleave(n // len(self.first))


Rule = Callable[[Any, Tensor | None, bool, str], tuple[list[Tensor], Units]]


def _dense(m: Any, before: Units | None, last: bool, layer: str) -> tuple[list[Tensor], Units]:
    n_out, n_in = m.weight.shape[:2]
    out = Units.always(n_out) if last else Units.hidden(n_out)
    into = torch.zeros(n_in) if before is None else before.spread(n_in, layer)
    table = torch.maximum(out.first[:, None], into[None])
    weight = table.reshape(n_out, n_in, *([1] * (m.weight.dim() - 2))).expand(m.weight.shape)
    return [weight, *([out.first] if m.bias is not None else [])], out


def _embedding(m: nn.Embedding, before: Units | None, last: bool, layer: str) -> tuple[list[Tensor], Units]:
    out = Units.always(m.embedding_dim) if last else Units.hidden(m.embedding_dim)
    return [out.first.expand(m.weight.shape)], out


def _lstm(m: LSTMLayer, before: Units | None, last: bool, layer: str) -> tuple[list[Tensor], Units]:
    out = Units.always(m.n_hidden) if last else Units.hidden(m.n_hidden)
    gates = out.first.repeat(4)
    into = torch.zeros(m.n_inputs) if before is None else before.spread(m.n_inputs, layer)
    pieces = [torch.maximum(gates[:, None], into[None]), torch.maximum(gates[:, None], out.first[None]), gates]
    return pieces, out


RULES: dict[type[nn.Module], Any] = {
    nn.Linear: _dense,
    nn.Conv2d: _dense,
    nn.Embedding: _embedding,
    LSTMLayer: _lstm,
}
"""``rule(module, units before it, whether it keeps all outputs, its name) -> widths per tensor, units after it``."""

_known: WeakKeyDictionary[Network, dict[torch.device, Tensor]] = WeakKeyDictionary()


def first_width(net: Network, device: torch.device | str = "cpu") -> Tensor:
    """The width at which each parameter appears: [P], float32 in [0, 1). Networks whose layers form one chain only."""
    tables = _known.setdefault(net, {})
    place = torch.device(device)
    if place not in tables:
        tables[place] = _walk(net).to(place)
    return tables[place]


def _walk(net: Network) -> Tensor:
    pieces: list[Tensor] = []
    units: Units | None = None
    if net.projects:
        raise _cannot("projection", "a projection head stands beside the last layer")
    for name in _chain(net):
        module = net.module.get_submodule(name)
        rule = next((RULES[kind] for kind in type(module).__mro__ if kind in RULES), None)
        if rule is None:
            raise _cannot(name, f"a layer of kind {type(module).__name__} has no rule")
        own = list(module.parameters(recurse=False))
        # What is not trained keeps its whole width, and so does what it gives: every unit exists from the start.
        tables, units = rule(module, units, name == net.head or not own[0].requires_grad, name)
        pieces.extend(table.reshape(-1) for table, one in zip(tables, own, strict=True) if one.requires_grad)
        _refuse_half(module, own, name)
    found = torch.cat(pieces).contiguous()
    if len(found) != net.size:
        raise _cannot(str(net.head), "its layers share parameters")
    return found


def _chain(net: Network) -> list[str]:
    """The layers in forward order, with those that are not trained."""
    trained = [layer.name for layer in net.layout.layers]
    every = [name for name, module in net.module.named_modules() if list(module.parameters(recurse=False))]
    if len(every) > len(trained) and [name for name in every if name in trained] != trained:
        raise _cannot(trained[0], "layers that are not trained have no place in the order that the model gives")
    return every if len(every) > len(trained) else trained


def _refuse_half(module: nn.Module, own: list[nn.Parameter], layer: str) -> None:
    """An LSTM's weights are one piece."""
    if isinstance(module, LSTMLayer) and len({one.requires_grad for one in own}) > 1:
        raise _cannot(layer, "only some of its weights are trained")


def _cannot(layer: str, why: str) -> InputError:
    return InputError(
        f"This model cannot be made narrower: at layer '{layer}', {why}; use mlp, a CNN or an LSTM whose layers form "
        "one chain, or a method without widths."
    )


def mask_of(net: Network, width: Tensor) -> Tensor:
    """1 where a parameter belongs to the network of that width: [*width.shape, P]."""
    return (first_width(net, width.device) < width.unsqueeze(-1)).to(torch.float32)


def layer_shares(net: Network, width: float) -> Tensor:
    """The share of each layer's parameters that the network of that width has: [L]."""
    mask = mask_of(net, torch.tensor(width))
    return net.layout.per_layer_sum(mask) / net.layout.layer_sizes


def scalable(net: Network) -> list[bool]:
    """Which layers are hidden ones whose outputs scale with their weights (linear, convolution): [L]."""
    modules = [(layer.name, net.module.get_submodule(layer.name)) for layer in net.layout.layers]
    return [name != net.head and isinstance(module, nn.Linear | nn.Conv2d) for name, module in modules]
