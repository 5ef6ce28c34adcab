"""Clients that train a narrow network inside the global one (HeteroFL, FjORD)."""

from __future__ import annotations

import torch
from torch import Tensor

from motley.core.errors import InputError
from motley.core.keys import fold_in, uniform
from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.ranges import NotNegative
from motley.core.types import Client, Data, Facts, Mine
from motley.nets.width import first_width, mask_of, scalable

Widths = list[float] | tuple[float, ...]


def level(facts: Facts, widths: Tensor, power: float) -> Tensor:
    """The largest of the widths [W] that a device affords, ``capability ** power``; the smallest where none: 0-d."""
    affordable = widths <= facts.capability**power + 1e-6
    return torch.where(affordable, widths, widths.min()).max()


def _narrow(widths: Widths, power: float) -> Part:
    """The hooks both methods share: train inside the narrow network, send nothing else."""
    good = isinstance(widths, list | tuple) and len(widths) > 0 and all(0 < float(w) <= 1 for w in widths)
    if not good:
        raise InputError(f"The widths are {widths!r}; give a list of shares above 0 and up to 1, such as [1.0, 0.5].")
    table = sorted(float(w) for w in widths)
    if table[0] == 1.0:
        return Part()  # everybody trains the whole network

    def width(net: Network, facts: Facts) -> Tensor:
        return level(facts, torch.tensor(table, device=facts.capability.device), power)

    def begin(c: Client, me: Mine, data: Data) -> Client:
        return c.with_(params=c.start * mask_of(c.net, width(c.net, c.facts)))

    def gradient(c: Client, me: Mine, grad: Tensor) -> Tensor:
        return grad * mask_of(c.net, width(c.net, c.facts))

    def report(c: Client, me: Mine, data: Data) -> tuple[Client, None]:
        inside = mask_of(c.net, width(c.net, c.facts)) > 0
        return c.with_(params=torch.where(inside, c.params, c.start)), None

    return Part(width=width, begin=begin, gradient=gradient, report=report)


@part("trainable", neutral={"widths": [1.0]}, example={"widths": [0.5]})
def narrow_networks(
    widths: Widths = (1.0, 0.5, 0.25, 0.125, 0.0625), power: NotNegative = 0.5, scale: bool = True
) -> Part:
    """Weak devices train a narrow network, the first units of every hidden layer (HeteroFL, Diao et al. 2021).

    A device takes the largest width up to ``capability ** power`` (capability: its speed as a share of the fastest;
    work grows with the square of the width, so power 0.5 takes about equally long everywhere). Each parameter is
    averaged over those who have it. ``scale``: hidden outputs are divided by the width while training, as HeteroFL's
    scaler does (linear and convolution layers). HeteroFL's masked loss and static batch norm are not part of this.
    """
    narrow = _narrow(widths, power)
    if narrow.width is None:
        return narrow

    def view(c: Client, me: Mine, params: Tensor) -> Tensor:
        assert narrow.width is not None
        hidden = torch.tensor(scalable(c.net), device=params.device)
        factor = torch.where(hidden, 1.0 / narrow.width(c.net, c.facts), torch.ones(len(hidden), device=params.device))
        return params * c.net.layout.expand(factor)

    return Part(
        width=narrow.width,
        begin=narrow.begin,
        gradient=narrow.gradient,
        report=narrow.report,
        view=view if scale else None,
    )


@part("trainable", neutral={"widths": [1.0]}, example={"widths": [0.5, 0.25]})
def ordered_dropout(
    widths: Widths = (0.2, 0.4, 0.6, 0.8, 1.0), power: NotNegative = 0.5, per: str = "minibatch"
) -> Part:
    """Every minibatch trains a random width up to the device's own (FjORD, Horvath et al. 2021).

    The device's largest width as in `narrow_networks`; for each minibatch, or with ``per="epoch"`` each local epoch,
    one of the widths up to it is drawn, all equally likely. FjORD can distil from the widest network; this does not.
    """
    if per not in ("minibatch", "epoch"):
        raise InputError(f"ordered_dropout draws a width per 'minibatch' or 'epoch', not per '{per}'.")
    narrow = _narrow(widths, power)
    if narrow.width is None:
        return narrow
    table = sorted(float(w) for w in widths)

    def view(c: Client, me: Mine, params: Tensor) -> Tensor:
        assert narrow.width is not None
        levels = torch.tensor(table, device=params.device)
        allowed = (levels <= narrow.width(c.net, c.facts)).sum()
        counted = c.step if per == "minibatch" else c.epoch.to(torch.int64)
        drawn = uniform(fold_in(fold_in(c.key, 7919), counted), (1,))[0]
        place = (drawn * allowed).to(torch.int64).clamp_max(allowed - 1)
        chosen = torch.where(torch.arange(len(table), device=params.device) == place, levels, torch.zeros_like(levels))
        return params * (first_width(c.net, params.device) < chosen.sum()).to(params.dtype)

    return Part(width=narrow.width, begin=narrow.begin, gradient=narrow.gradient, report=narrow.report, view=view)
