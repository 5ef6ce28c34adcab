"""The local loss of ONE client's minibatch, as a function of what is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from motley.client.hook_results import a_number, a_tensor
from motley.core.hooks import IN_LOSS
from motley.core.in_training import Pass
from motley.core.network import Network
from motley.core.part import Method
from motley.core.types import Batch, Client, Output

if TYPE_CHECKING:
    from motley.client.trainer import Span, Training


class Inside:
    """The model inside the loss: its tensors as parts view them, and logits as parts leave them."""

    __slots__ = ("batch", "calls", "client", "out", "statistics", "tensors", "training")

    def __init__(self, training: Training, c: Client, tensors: list[Tensor], batch: Batch) -> None:
        self.training, self.client, self.tensors, self.batch = training, c, tensors, batch
        self.out: Output | None = None  # of the last forward pass, as the model gave it
        self.calls = 0
        self.statistics: tuple[Tensor, ...] = ()  # running statistics after the last forward pass, in slot order

    def __call__(self, x: Tensor) -> Output:
        out, self.statistics = forward(self.training, self.tensors, x, self._pass(x))
        self.out, self.calls = out, self.calls + 1
        hooks = self.training.method.hooks("logits")
        if not hooks:
            return out
        logits = out.logits
        for name, hook in hooks:
            found = hook(self.client, self.client.mine(name), self.batch, logits)
            logits = a_tensor(name, "logits", found, tuple(logits.shape))
        return Output(out.features, logits)

    def _pass(self, x: Tensor) -> Pass:
        c, mask = self.client, self.batch.mask
        return Pass(c.key, c.step, self.calls, mask if mask is not None and len(mask) == len(x) else None)

    def piece(self, name: str, *inputs: Tensor, fixed: bool = False) -> Tensor:
        """One function of the module alone; ``fixed``: its weights count as constants."""
        tensors = [tensor.detach() for tensor in self.tensors] if fixed else self.tensors
        found = self.training.net.piece(tensors, name, *inputs)
        if self.out is None:
            self.out = Output(found, found)
        return found


class Aside(NamedTuple):
    """What a loss tells beside its value."""

    data_term: Tensor  # without the terms that parts add
    statistics: tuple[Tensor, ...]  # running statistics after the pass, in slot order; none where the model has none


def objective(
    training: Training, c: Client, free: Tensor | list[Tensor], span: Span, batch: Batch
) -> tuple[Tensor, Aside]:
    """The loss as a function of the free parameters (those of the layers in ``span``), and what it tells beside.

    ``free`` is a flat vector, or the model's tensors in slot order where all layers are free and no hook reads
    ``c.params`` (`reads_params`): their gradients then need not be gathered in one vector.
    """
    net, method = training.net, training.method
    if isinstance(free, list):
        tensors, whole = free, c.params
    elif span == training.full_span:
        tensors, whole = net.layout.tensors(free), free
    else:
        tensors, whole = _with_frozen(net, c.params, free, span)
    if reads_params(method):  # running statistics are as received: no term of the loss is about them
        c = c.with_(params=net.layout.with_statistics(whole, c.start))
    for name, hook in method.hooks("view"):
        whole = a_tensor(name, "view", hook(c, c.mine(name), whole), tuple(whole.shape))
        tensors = net.layout.tensors(whole)
    model = Inside(training, c, tensors, batch)
    data_term = training.problem.loss(model, batch)
    loss = data_term
    for name, hook in method.hooks("penalty"):
        assert model.out is not None
        loss = loss + a_number(name, "penalty", hook(c, c.mine(name), batch, model.out))
    return loss, Aside(data_term, model.statistics)


def forward(training: Training, tensors: list[Tensor], x: Tensor, one: Pass) -> tuple[Output, tuple[Tensor, ...]]:
    """A pass of training in the run's precision; also the running statistics after it, in slot order."""
    if training.precision != "bf16":
        return training.net.train(tensors, x, one)
    low = x.to(torch.bfloat16) if x.is_floating_point() else x
    both = zip(tensors, training.net.layout.slots, strict=True)
    mixed = [tensor.to(torch.bfloat16) if slot.by_gradient else tensor for tensor, slot in both]
    out, statistics = training.net.train(mixed, low, one)
    return Output(out.features.float(), out.logits.float()), statistics


def reads_params(method: Method) -> bool:
    """Whether hooks inside the loss may read the parameters."""
    return any(method.has(hook) for hook in IN_LOSS)


def _with_frozen(net: Network, params: Tensor, free: Tensor, span: Span) -> tuple[list[Tensor], Tensor]:
    """Tensors in slot order whose frozen ones carry no gradient, and the whole flat vector."""
    low, high = bounds(net, span)
    frozen = params.detach()
    held = net.layout.tensors(frozen)
    slots = net.layout.slots
    sizes = [slot.size for slot in slots if span.first <= slot.layer < span.last]
    moving = iter(torch.split(free, sizes))
    tensors = [
        next(moving).view(slot.shape) if span.first <= slot.layer < span.last else tensor
        for slot, tensor in zip(slots, held, strict=True)
    ]
    return tensors, torch.cat([frozen[:low], free, frozen[high:]])


def bounds(net: Network, span: Span) -> tuple[int, int]:
    """The slice of the flat vector that a span of layers covers."""
    layers = net.layout.layers
    if span.first >= span.last:
        return 0, 0
    return layers[span.first].start, layers[span.last - 1].stop
