"""One minibatch step of many clients as a function of stacked tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves, tree_map

from motley.client.local_loss import Aside, bounds, objective, reads_params
from motley.client.trainer import Span, Training, corrected
from motley.core.types import Batch, Client, Facts, Tree


class Shared(NamedTuple):
    """Which inputs are the same for all clients of a group; those get no client axis."""

    start: bool
    down: bool


class Inputs(NamedTuple):
    """What a step of w clients takes beside the clients."""

    x: Tensor  # [w, B, ...]
    y: Tensor  # [w, B]
    mask: Tensor | None  # [w, B], None where nothing is padded
    share: Tensor | None  # [w, B] the mask over its sum
    rate: Tensor  # [w, 1] learning rates; 0 for whoever is done
    epoch: Tensor  # [w] epochs finished
    step: Tensor  # [w] steps finished, int64

    def first(self) -> Inputs:
        """Of several steps, stacked, the first."""
        return Inputs(*(None if column is None else column[0] for column in self))  # type: ignore[arg-type]

    @property
    def axes(self) -> Inputs:
        """Where the client axis is."""
        padded = None if self.mask is None else 0
        return Inputs(0, 0, padded, padded, 0, 0, 0)  # type: ignore[arg-type]


def augmented(training: Training, inputs: Inputs, key: Tensor, numbers: Tensor) -> Inputs:
    """Inputs of the steps ``numbers`` [..., 1] with images [..., w, B, C, H, W] changed as clients with keys [w] do."""
    if training.augment is None:
        return inputs
    x = inputs.x
    keys, steps = (each.expand(x.shape[:-4]).reshape(-1) for each in (key, numbers))
    changed = vmap(training.augment)(x.reshape(-1, *x.shape[-4:]), keys, steps)
    return inputs._replace(x=changed.view(x.shape))


def client_axes(c: Client, shared: Shared) -> Client:
    """Which leaves of stacked clients have a client axis."""
    start, down = (None if shared.start else 0), (None if shared.down else 0)
    facts = Facts(*([0] * len(Facts._fields)))  # type: ignore[arg-type]
    return c.with_(
        params=0, start=start, trained=0, facts=facts, key=0, epoch=0, step=0, loss=0, down=down, own=0, notes=0,
        dials=down,
    )  # fmt: skip


def first(c: Client, width: int, shared: Shared) -> Client:
    """The first ``width`` of stacked clients."""
    return taken(c, lambda leaf: leaf[:width], shared)


def taken(c: Client, take: Callable[[Tensor], Tensor], shared: Shared) -> Client:
    """Some of stacked clients: what ``take`` makes of each leaf that has a client axis."""

    def some(tree: Any) -> Any:
        return tree_map(take, tree)

    return c.with_(
        params=take(c.params),
        start=c.start if shared.start else take(c.start),
        trained=take(c.trained),
        facts=some(c.facts),
        key=take(c.key),
        epoch=take(c.epoch),
        step=take(c.step),
        loss=take(c.loss),
        down=c.down if shared.down else some(c.down),
        own=some(c.own),
        notes=some(c.notes),
        dials=c.dials if shared.down else some(c.dials),
    )


Step = Callable[[tuple[Tensor, Tree], Inputs, Client], tuple[Tensor, Tree, Tensor]]


def make_step(training: Training, span: Span, masked: bool, shared: Shared) -> Step:
    """``((params, optimizer state), inputs, clients) -> (params, state, loss)``, each stacked over w clients.

    Parameters and state are written where they lie. masked: some layers inside the span stay as they are.
    """
    low, high = bounds(training.net, span)
    size = training.net.size
    whole = not masked and high - low == size
    by_tensor = whole and not reads_params(training.method) and not training.method.has("gradient")

    def slope(c: Client, batch: Batch) -> tuple[Tensor, Aside]:
        """The full gradient of one client, corrected, and what its loss tells beside."""

        def loss_of(free: Tensor) -> tuple[Tensor, Aside]:
            return objective(training, c, free, span, batch)

        gradient, aside = grad(loss_of, has_aux=True)(c.params[low:high])
        if high - low < size:
            gradient = pad(gradient, (low, size - high))
        return corrected(training, c, gradient), aside

    def slopes(tensors: list[Tensor], c: Client, batch: Batch) -> Any:
        """As `slope`, by tensors of the model."""
        return grad(lambda free: objective(training, c, free, span, batch), has_aux=True)(tensors)

    def tensor_by_tensor(moving: tuple[Tensor, Tree], inputs: Inputs, c: Client, batch: Batch, axes: Any) -> Aside:
        params, state = moving
        slots = training.net.layout.slots
        pieces = torch.split(params, [slot.size for slot in slots], dim=1)
        tensors = [piece.view(len(params), *slot.shape) for piece, slot in zip(pieces, slots, strict=True)]
        gradients, aside = vmap(slopes, in_dims=([0] * len(tensors), *axes))(tensors, c, batch)
        states = [tree_map(lambda leaf, slot=slot: leaf[:, slot.start : slot.stop], state) for slot in slots]
        for piece, gradient, some in zip(pieces, gradients, states, strict=True):
            training.optimizer.step_(some, piece, gradient.flatten(1), inputs.rate)
        found: Aside = aside
        return found

    def done(params: Tensor, aside: Aside, c: Client) -> Tensor:
        """Puts new running statistics where clients still train; the loss."""
        if aside.statistics:
            training.net.layout.put_statistics(params, aside.statistics, c.step < c.facts.steps)
        return aside.data_term

    def step(moving: tuple[Tensor, Tree], inputs: Inputs, c: Client) -> tuple[Tensor, Tree, Tensor]:
        params, state = moving
        batch = Batch(inputs.x, inputs.y, inputs.mask, inputs.share)
        c = c.with_(params=params, epoch=inputs.epoch, step=inputs.step)
        axes = (client_axes(c, shared), Batch(*inputs.axes[:4]))
        if by_tensor and all(leaf.dim() > 1 for leaf in tree_leaves(state)):
            return params, state, done(params, tensor_by_tensor(moving, inputs, c, batch, axes), c)
        gradient, aside = vmap(slope, in_dims=axes)(c, batch)
        if whole:
            training.optimizer.step_(state, params, gradient, inputs.rate)
            return params, state, done(params, aside, c)
        new, new_state = vmap(training.optimizer.step)(state, params, gradient, inputs.rate)
        loss = done(new, aside, c)
        new = torch.where(training.net.layout.expand(c.trained) > 0, new, params)
        tree_map(lambda old, fresh: old.copy_(fresh), moving, (new, new_state))
        return params, state, loss

    return step
