"""Where a group runs: the cores of a CPU, or a GPU that replays captured graphs; and what both do alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from motley.client.optimizer import SGD
from motley.client.trainer import Training, after_epoch
from motley.core.types import Client, Tree
from motley.data.federated import FederatedData
from motley.engine.batched.assemble import Assembler
from motley.engine.batched.group import Group, Waste
from motley.engine.batched.minibatches import Table
from motley.engine.batched.steps import Inputs, client_axes, taken
from motley.engine.batched.trace import Traced


class Lane(Protocol):
    """One kind of hardware."""

    device: torch.device
    data: FederatedData  # on the device
    assemble: Assembler
    widest: int  # clients that run together, at most
    together: int  # minibatches that are measured together
    waste: Waste

    def scope(self) -> AbstractContextManager[object]:
        """Around everything that is computed."""

    def width(self, k: int) -> int:
        """To how many clients a group of k is padded."""

    def trace(self, what: tuple[Any, ...], function: Callable[..., Any], args: tuple[Any, ...], axes: Any) -> Traced:
        """A function traced for such arguments, made once; ``axes`` says which leaves have a client axis."""

    def train(self, group: Group, c: Client) -> Client:
        """All steps of all clients; at least one is to be taken."""

    def clear(self) -> None:
        """Gives back what is kept between rounds."""


def at_rest(training: Training, params: Tensor) -> Tree:
    """The optimizer's state before the first step, stacked."""
    init = training.optimizer.init
    return init(params) if isinstance(training.optimizer, SGD) else vmap(init)(params)


def inputs_of(
    data: FederatedData, c: Client, drawn: Table, numbers: Tensor, steps: Tensor, per_epoch: Tensor
) -> Inputs:
    """What the steps ``numbers`` [..., 1] of stacked clients take; ``drawn`` has the same leading shape."""
    rows, mask = drawn
    owner = c.facts.client[:, None].expand(rows.shape)
    x, y = data.gather(rows.reshape(-1), owner.reshape(-1))
    return Inputs(
        x=x.view(*rows.shape, *x.shape[1:]),
        y=y.view(*rows.shape, *y.shape[1:]),
        mask=mask,
        share=None if mask is None else mask / mask.sum(-1, keepdim=True).clamp_min(1.0),
        rate=(c.facts.lr * (numbers < steps)).unsqueeze(-1),
        epoch=(numbers // per_epoch).to(torch.float32),
        step=numbers.expand(rows.shape[:-1]),
    )


def epoch_ends(lane: Lane, training: Training, group: Group, c: Client, losses: Tensor, s: int) -> Client:
    """Runs the parts' `epoch` hooks on the clients whose epoch ended with step s.

    ``c.params`` are those of the clients that still move; they change where they lie.
    """
    params = c.params
    who = group.ended(s, len(params))
    if not who:
        return c
    rows = torch.tensor(who, device=params.device)
    per_epoch = group.per_epoch[rows]
    done = torch.full_like(per_epoch, s + 1)
    here = taken(c, lambda leaf: leaf[rows], group.shared).with_(
        epoch=(done // per_epoch).to(torch.float32),
        step=done,
        loss=window_mean(losses[: s + 1, rows], per_epoch, done),
    )

    def one(c: Client) -> tuple[Any, ...]:
        c = after_epoch(training, c)
        return c.params, c.trained, c.own, c.notes

    dims = (client_axes(here, group.shared),)
    hooks = lane.trace(("epoch", group.shared), vmap(one, in_dims=dims), (here,), dims)
    moved, trained, own, notes = hooks(here)
    params.index_copy_(0, rows, moved)

    def put(old: Tensor, new: Tensor) -> Tensor:
        return old.index_copy(0, rows, new)

    blank = tree_map(lambda new: new.new_zeros(group.width, *new.shape[1:]), notes)
    return c.with_(
        trained=put(c.trained, trained),
        own=tree_map(put, c.own, own),
        notes=tree_map(put, {**blank, **c.notes}, notes),
    )


def closed(group: Group, c: Client, losses: Tensor) -> Client:
    """The clients after their last step: their loss is the mean over the last epoch, whole or begun."""
    steps = group.drawn.steps
    left = steps % group.per_epoch
    window = torch.where(left > 0, left, group.per_epoch)
    epoch = (steps // group.per_epoch).to(torch.float32)
    return c.with_(loss=window_mean(losses, window, steps), epoch=epoch, step=steps)


def window_mean(losses: Tensor, window: Tensor, end: Tensor) -> Tensor:
    """Mean of losses [S, K] over the ``window`` steps before step ``end``: [K]."""
    s = torch.arange(len(losses), device=losses.device)[:, None]
    inside = (s < end) & (s >= end - window)
    return torch.where(inside, losses, 0.0).sum(0) / inside.sum(0).clamp_min(1)
