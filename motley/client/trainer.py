"""Local training of ONE client, as pure functions. Executors call them for one client, or vmap them over many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, pad
from torch.utils._pytree import tree_map

from motley.client.augment import Augment
from motley.client.cross_entropy import fits, mean_loss
from motley.client.optimizer import SGD, Optimizer
from motley.core.keys import fold_in, permutation
from motley.core.network import Network
from motley.core.part import Method
from motley.core.types import Batch, Client, Data, Facts, Output, Tree
from motley.core.vmapped import is_vmapped
from motley.nets.conv import conv_formulation


@dataclass(frozen=True)
class Training:
    """What every client of a run does alike."""

    net: Network
    method: Method
    optimizer: Optimizer
    batch_size: int
    precision: str = "float32"  # tf32: faster products on a GPU; bf16: the forward and backward pass in bfloat16
    augment: Augment | None = None  # random changes of the images clients train on

    @cached_property
    def full_span(self) -> Span:
        return Span(0, self.net.n_layers)


class Span(NamedTuple):
    """The layers first..last-1: outside them nothing is trained, so no gradient is computed there."""

    first: int
    last: int


class Task(NamedTuple):
    """Everything one client receives for one task, beside its data."""

    start: Tensor  # [P]
    facts: Facts
    key: Tensor
    down: dict[str, Tree]
    own: dict[str, Tree] | None  # None: this client takes part for the first time
    dials: dict[str, dict[str, Tensor]]


class Outcome(NamedTuple):
    """What one client's task gives back."""

    payload: Tree  # what goes over the wire: the change of the weights [P], or what `encode` made of it
    trained: Tensor  # [L]
    extras: dict[str, Tree]
    own: dict[str, Tree]
    loss: Tensor


def n_steps(epochs: float, n: int, batch_size: int) -> int:
    """Minibatch steps of ``epochs`` passes; 3.5 are 3 passes and half the minibatches of a fourth."""
    return max(1, round(epochs * -(-n // batch_size)))


def n_steps_each(epochs: NDArray[np.float64], n: NDArray[np.int64], batch_size: int) -> NDArray[np.int64]:
    """`n_steps` of many clients."""
    return np.maximum(1, np.rint(epochs * -(-n // batch_size))).astype(np.int64)


def trainable(training: Training, facts: Facts, device: torch.device | None = None) -> Tensor:
    """The layers a client may change: [L], a product over parts."""
    trained = torch.ones(training.net.n_layers, device=device)
    for _, hook in training.method.hooks("trainable"):
        trained = trained * hook(training.net, facts)
    return trained


def begin(training: Training, task: Task, data: Data) -> Client:
    """The client before its first step."""
    net, method, facts = training.net, training.method, task.facts
    own = task.own
    if own is None:
        own = {name: hook(net, task.start, facts) for name, hook in method.hooks("keep")}
    zero = torch.zeros((), device=task.start.device)
    c = Client(
        params=task.start,
        start=task.start,
        trained=trainable(training, facts, task.start.device),
        facts=facts,
        key=task.key,
        epoch=zero,
        loss=zero,
        down=task.down,
        own=own,
        notes={},
        dials=task.dials,
        net=net,
        batch_size=training.batch_size,
    )
    for _, hook in method.hooks("begin"):
        c = hook(c, data)
    return c


def objective(
    training: Training, c: Client, free: Tensor | list[Tensor], span: Span, batch: Batch
) -> tuple[Tensor, Tensor]:
    """The loss as a function of the free parameters (those of the layers in ``span``); also its data term alone.

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
    if reads_params(method):
        c = c.with_(params=whole)
    for _, hook in method.hooks("view"):
        whole = hook(c, whole)
        tensors = net.layout.tensors(whole)
    out = _forward(training, tensors, batch.x)
    logits = out.logits
    for _, hook in method.hooks("logits"):
        logits = hook(c, batch, logits)
    data_term = _data_term(logits, batch)
    loss = data_term
    for _, hook in method.hooks("penalty"):
        loss = loss + hook(c, batch, out)
    return loss, data_term


def _data_term(logits: Tensor, batch: Batch) -> Tensor:
    """The cross-entropy in few operations under `vmap`, where `cross_entropy` becomes two dozen."""
    if not is_vmapped(logits):
        if batch.mask is None:
            return cross_entropy(logits, batch.y)
        return batch.mean(cross_entropy(logits, batch.y, reduction="none"))
    if fits(logits, batch):
        return mean_loss(logits, batch)
    chosen = batch.y.unsqueeze(-1) == torch.arange(logits.shape[-1], device=logits.device)
    return -batch.mean(torch.where(chosen, log_softmax(logits, -1), 0.0).sum(-1))


def _forward(training: Training, tensors: list[Tensor], x: Tensor) -> Output:
    if training.precision != "bf16":
        return training.net.forward(tensors, x)
    low = x.to(torch.bfloat16) if x.is_floating_point() else x
    out = training.net.forward([tensor.to(torch.bfloat16) for tensor in tensors], low)
    return Output(out.features.float(), out.logits.float())


def reads_params(method: Method) -> bool:
    """Whether hooks inside the loss may read the parameters."""
    return method.has("view") or method.has("logits") or method.has("penalty")


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


def span_of(trained: Tensor) -> tuple[Span, bool]:
    """The smallest span that holds all trained layers, and whether all inside it are trained. Not for use in vmap."""
    on = [i for i, value in enumerate(trained.tolist()) if value]
    if not on:
        return Span(0, 0), True
    span = Span(on[0], on[-1] + 1)
    return span, len(on) == span.last - span.first


def corrected(training: Training, c: Client, grad: Tensor) -> Tensor:
    """A full gradient [P] after the parts' `gradient` hooks."""
    for _, hook in training.method.hooks("gradient"):
        grad = hook(c, grad)
    return grad


def move(
    training: Training, c: Client, state: Tree, grad: Tensor, mask: Tensor | None, lr: Tensor
) -> tuple[Tensor, Tree]:
    """One optimizer step from a full gradient [P]; where ``mask`` [P] is 0 nothing moves."""
    params, state = training.optimizer.step(state, c.params, corrected(training, c, grad), lr)
    if mask is not None:
        params = torch.where(mask > 0, params, c.params)
    return params, state


def measured(training: Training, c: Client, data: Data) -> Client:
    """The trained client with a note of each part's `measure`: the mean over its minibatches, samples in order."""
    for name, hook in training.method.hooks("measure"):
        pieces = zip(data.x.split(training.batch_size), data.y.split(training.batch_size), strict=True)
        values = [hook(c, Batch(x, y)) for x, y in pieces]
        c = c.note(name, tree_map(lambda *leaves: torch.stack(leaves).mean(0), *values))
    return c


def finish(training: Training, c: Client, data: Data) -> Outcome:
    """What goes up and what stays after the last step."""
    extras: dict[str, Tree] = {}
    for name, hook in training.method.hooks("report"):
        c, extra = hook(c, data)
        if extra is not None:
            extras[name] = extra
    payload: Tree = c.params - c.start
    for _, hook in training.method.hooks("encode"):
        payload = hook(c, payload)
    return Outcome(payload, c.trained, extras, c.own, c.loss)


# --------------------------------------------------------------------------------- one client, step by step


def minibatches(
    key: Tensor, data: Data, batch_size: int, steps: int, channels_last: bool = False
) -> Iterator[tuple[Batch, bool]]:
    """The first ``steps`` minibatches; each epoch is a new random order. Says after which one an epoch ends.

    channels_last: images keep their shape [B, C, H, W], but the channels of a pixel lie side by side in memory.
    """
    n = len(data.y)
    samples = data.x.movedim(1, -1).contiguous() if channels_last else data.x
    per_epoch = -(-n // batch_size)
    for epoch in range(-(-steps // per_epoch)):
        order = permutation(fold_in(key, epoch), n)
        if steps - epoch * per_epoch < per_epoch:
            order = order[: (steps - epoch * per_epoch) * batch_size]
        drawn = samples.index_select(0, order)
        xs = (drawn.movedim(-1, 1) if channels_last else drawn).split(batch_size)
        ys = data.y.index_select(0, order).split(batch_size)
        for j, (x, y) in enumerate(zip(xs, ys, strict=True)):
            yield Batch(x, y), j == per_epoch - 1


def _augmented(training: Training, key: Tensor, drawn: Iterator[tuple[Batch, bool]]) -> Iterator[tuple[Batch, bool]]:
    """The same minibatches with their images changed, where a run does that."""
    if training.augment is None:
        yield from drawn
        return
    for s, (batch, ended) in enumerate(drawn):
        yield batch._replace(x=training.augment(batch.x, key, s)), ended


def _convolves_images(net: Network, x: Tensor) -> bool:
    """Whether samples go through convolutions on a CPU, which are faster with channels last."""
    return x.dim() == 4 and not x.is_cuda and any(len(slot.shape) == 4 for slot in net.layout.slots)


@conv_formulation("direct")
def train(training: Training, task: Task, data: Data, observer: Callable[[Client], None] | None = None) -> Outcome:
    """The whole task of one client, nothing batched and nothing masked: the reference for all executors.

    ``observer`` is called after each step with the client as it is then (for debugging and for real devices).
    """
    with torch.no_grad():
        c = begin(training, task, data)
    steps = int(task.facts.steps)
    state = training.optimizer.init(c.params)
    span, whole, mask, low, high = _focus(training, c)
    plain = training.optimizer == SGD() and not reads_params(training.method) and not training.method.has("gradient")
    if span.first < span.last:
        running = torch.zeros((), device=c.params.device)
        count = 0
        quick = Descent(training, c.params, span) if plain and whole else None
        channels_last = _convolves_images(training.net, data.x)
        drawn = minibatches(c.key, data, training.batch_size, steps, channels_last)
        for batch, ended in _augmented(training, c.key, drawn):
            if quick is not None:
                data_term, params = quick.step(batch, c.facts.lr), quick.params
            else:
                free = c.params[low:high].detach().requires_grad_()
                loss, data_term = objective(training, c, free, span, batch)
                (grad,) = torch.autograd.grad(loss, free)
                if high - low < training.net.size:
                    grad = pad(grad, (low, training.net.size - high))
                with torch.no_grad():
                    params, state = move(training, c, state, grad, mask, c.facts.lr)
            with torch.no_grad():
                running = running + data_term.detach()
                count += 1
                if params is not c.params:
                    c = c.with_(params=params)
                if ended:
                    c = c.with_(epoch=c.epoch + 1.0, loss=running / count)
                    running, count = torch.zeros_like(running), 0
                    for _, hook in training.method.hooks("epoch"):
                        c = hook(c)
                    if training.method.adaptive:
                        span, whole, mask, low, high = _focus(training, c)
                        if span.first >= span.last:
                            break
                        quick = Descent(training, c.params, span) if plain and whole else None
                if observer is not None:
                    observer(c.with_(params=c.params.clone()))
        if count:
            c = c.with_(loss=running / count)
    with torch.no_grad():
        return finish(training, measured(training, c, data), data)


class Descent:
    """Steps of plain SGD on the data term alone, as `objective` and `move` do them, in place on a copy of the model.

    Most steps of most methods are these. Gradients are never gathered in one vector and nothing is copied from step to
    step, which makes them as quick as a bare PyTorch loop; layers outside ``span`` cost no backward pass.
    """

    def __init__(self, training: Training, params: Tensor, span: Span) -> None:
        self.training = training
        self.params = params.detach().clone()
        slots = training.net.layout.slots
        self._tensors = training.net.layout.tensors(self.params)
        moving = [i for i, slot in enumerate(slots) if span.first <= slot.layer < span.last]
        for i in moving:
            self._tensors[i] = self._tensors[i].detach().requires_grad_()
        self._leaves = [self._tensors[i] for i in moving]

    def step(self, batch: Batch, lr: Tensor) -> Tensor:
        """Moves ``params`` by one step and gives the data term before it."""
        loss = cross_entropy(_forward(self.training, self._tensors, batch.x).logits, batch.y)
        grads = torch.autograd.grad(loss, self._leaves, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            for leaf, grad in zip(self._leaves, grads, strict=True):
                leaf.addcmul_(grad, lr, value=-1.0)
        return loss.detach()


def _focus(training: Training, c: Client) -> tuple[Span, bool, Tensor | None, int, int]:
    """What is trained now: the span of layers, whether all of it, a mask where not everything, and its bounds."""
    span, whole = span_of(c.trained)
    low, high = bounds(training.net, span)
    everything = whole and span == training.full_span
    return span, whole, None if everything else training.net.layout.expand(c.trained), low, high
