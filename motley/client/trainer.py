"""Local training of ONE client, as pure functions. Executors call them for one client, or vmap them over many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._pytree import tree_map

from motley.client.augment import Augment
from motley.client.hook_results import a_client, a_pair, a_tensor
from motley.client.local_loss import bounds, forward, objective, reads_params
from motley.client.minibatch import augmented, minibatches
from motley.client.optimizer import SGD, Optimizer
from motley.client.problems import Classification
from motley.core.in_training import Pass
from motley.core.network import Network
from motley.core.part import Method
from motley.core.problem import Problem
from motley.core.tasks import Kept
from motley.core.types import Batch, Client, Data, Facts, Tree
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
    problem: Problem = field(default_factory=Classification)

    @cached_property
    def full_span(self) -> Span:
        return Span(0, self.net.n_layers)


class Span(NamedTuple):
    """The layers first..last-1: outside them nothing is trained, so no gradient is computed there."""

    first: int
    last: int


class Trained(NamedTuple):
    """What one client's training gives."""

    payload: Tree  # what goes over the wire: the change of the weights [P], or what `encode` made of it
    trained: Tensor  # [L]
    extras: dict[str, Tree]
    own: Kept
    loss: Tensor


def trainable(training: Training, facts: Facts, device: torch.device | None = None) -> Tensor:
    """The layers a client may change: [L], a product over parts."""
    trained = torch.ones(training.net.n_layers, device=device)
    for name, hook in training.method.hooks("trainable"):
        trained = trained * a_tensor(name, "trainable", hook(training.net, facts), (training.net.n_layers,))
    return trained


def sent(training: Training) -> Tensor:
    """The layers that travel: [L], a product over parts."""
    layers = torch.ones(training.net.n_layers)
    for name, hook in training.method.hooks("sent"):
        layers = layers * a_tensor(name, "sent", hook(training.net), (training.net.n_layers,))
    return layers


def new_client(
    training: Training,
    start: Tensor,
    facts: Facts,
    key: Tensor,
    down: dict[str, Tree] | None = None,
    own: Kept | None = None,
    dials: dict[str, dict[str, Tensor]] | None = None,
) -> Client:
    """A client that has just received its task; ``own`` is None where it takes part for the first time."""
    if own is None:
        own = {name: hook(training.net, start, facts) for name, hook in training.method.hooks("keep")}
    zero = torch.zeros((), device=start.device)
    return Client(
        params=start,
        start=start,
        trained=torch.ones(training.net.n_layers, device=start.device),
        facts=facts,
        key=key,
        epoch=zero,
        step=zero.to(torch.int64),
        loss=zero,
        down=down or {},
        own=own,
        notes={},
        dials=dials or {},
        net=training.net,
        problem=training.problem,
        batch_size=training.batch_size,
    )


def begin(training: Training, c: Client, data: Data) -> Client:
    """The client before its first step."""
    c = c.with_(trained=trainable(training, c.facts, c.start.device))
    for name, hook in training.method.hooks("begin"):
        c = a_client(name, "begin", hook(c, c.mine(name), data), c)
    return c


def span_of(trained: Tensor) -> tuple[Span, bool]:
    """The smallest span that holds all trained layers, and whether all inside it are trained. Not for use in vmap."""
    on = [i for i, value in enumerate(trained.tolist()) if value]
    if not on:
        return Span(0, 0), True
    span = Span(on[0], on[-1] + 1)
    return span, len(on) == span.last - span.first


def corrected(training: Training, c: Client, grad: Tensor) -> Tensor:
    """A full gradient [P] after the parts' `gradient` hooks."""
    for name, hook in training.method.hooks("gradient"):
        grad = a_tensor(name, "gradient", hook(c, c.mine(name), grad), tuple(grad.shape))
    return grad


def move(
    training: Training,
    c: Client,
    state: Tree,
    grad: Tensor,
    mask: Tensor | None,
    lr: Tensor,
    statistics: tuple[Tensor, ...] = (),
) -> tuple[Tensor, Tree]:
    """One optimizer step from a full gradient [P], and new running statistics; where ``mask`` [P] is 0 all stays."""
    params, state = training.optimizer.step(state, c.params, corrected(training, c, grad), lr)
    if statistics:
        training.net.layout.put_statistics(params, statistics)
    if mask is not None:
        params = torch.where(mask > 0, params, c.params)
    return params, state


def measured(training: Training, c: Client, data: Data) -> Client:
    """The trained client with a note of each part's `measure`: the mean over its minibatches, samples in order."""
    for name, hook in training.method.hooks("measure"):
        pieces = zip(data.x.split(training.batch_size), data.y.split(training.batch_size), strict=True)
        me = c.mine(name)
        values = [hook(c, me, Batch(x, y)) for x, y in pieces]
        c = me.note(c, tree_map(lambda *leaves: torch.stack(leaves).mean(0), *values))
    return c


def finish(training: Training, c: Client, data: Data) -> Trained:
    """What goes up and what stays after the last step."""
    extras: dict[str, Tree] = {}
    for name, hook in training.method.hooks("report"):
        c, extra = a_pair(name, "report", hook(c, c.mine(name), data), c)
        if extra is not None:
            extras[name] = extra
    payload: Tree = c.params - c.start
    for name, hook in training.method.hooks("encode"):
        payload = hook(c, c.mine(name), payload)
    trained = c.trained * sent(training).to(c.trained.device) if training.method.has("sent") else c.trained
    return Trained(payload, trained, extras, c.own, c.loss)


def _convolves_images(net: Network, x: Tensor) -> bool:
    """Whether samples go through convolutions on a CPU, which are faster with channels last."""
    return x.dim() == 4 and not x.is_cuda and any(len(slot.shape) == 4 for slot in net.layout.slots)


Observer = Callable[[Client], None]


@conv_formulation("direct")
def train(training: Training, c: Client, data: Data, observer: Observer | None = None) -> Trained:
    """The whole task of one client, nothing batched and nothing masked: the reference for all executors.

    ``observer`` is called after each step with the client as it is then (for debugging and for real devices).
    """
    with torch.no_grad():
        c = begin(training, c, data)
    focus = Focus.of(training, c)
    if focus.span.first < focus.span.last:
        c = _all_steps(training, c, data, focus, observer)
    with torch.no_grad():
        return finish(training, measured(training, c, data), data)


def _all_steps(training: Training, c: Client, data: Data, focus: Focus, observer: Observer | None) -> Client:
    total = int(c.facts.steps)
    stepper = Stepper(training, c, focus, training.net.acts(data.x))
    numbers = torch.arange(1, total + 1, device=c.params.device).unbind() if stepper.quick is None else None
    running, count = torch.zeros((), device=c.params.device), 0
    channels_last = _convolves_images(training.net, data.x)
    drawn = minibatches(c.key, data, training.batch_size, total, channels_last)
    for number, (batch, ended) in enumerate(augmented(training.augment, c.key, drawn)):
        params, data_term = stepper(c, batch)
        with torch.no_grad():
            running, count = running + data_term.detach(), count + 1
            if params is not c.params:
                c = c.with_(params=params) if numbers is None else c.with_(params=params, step=numbers[number])
            if ended:
                c = c.with_(epoch=c.epoch + 1.0, step=_number(number + 1, c), loss=running / count)
                running, count = torch.zeros_like(running), 0
                c = after_epoch(training, c)
                if training.method.has("epoch") and not stepper.refocus(c):
                    break
            if observer is not None:
                observer(c.with_(params=c.params.clone()))
    return c.with_(step=_number(number + 1, c), loss=running / count) if count else c


def _number(value: int, c: Client) -> Tensor:
    return torch.tensor(value, device=c.params.device)


def after_epoch(training: Training, c: Client) -> Client:
    """The client after the parts' `epoch` hooks."""
    for name, hook in training.method.hooks("epoch"):
        c = a_client(name, "epoch", hook(c, c.mine(name)), c)
    return c


class Focus(NamedTuple):
    """What a client trains now."""

    span: Span
    whole: bool  # all layers of the span
    mask: Tensor | None  # [P], where not everything
    low: int  # the part of the flat vector that the span covers
    high: int

    @classmethod
    def of(cls, training: Training, c: Client) -> Focus:
        span, whole = span_of(c.trained)
        everything = whole and span == training.full_span
        mask = None if everything else training.net.layout.expand(c.trained)
        return cls(span, whole, mask, *bounds(training.net, span))


class Stepper:
    """One minibatch step after the other of one client."""

    def __init__(self, training: Training, c: Client, focus: Focus, acts: bool) -> None:
        self.training = training
        self.state = training.optimizer.init(c.params)
        plain = training.optimizer == SGD() and not training.method.has("gradient") and not acts
        self._plain = plain and not reads_params(training.method) and not training.problem.reads_client
        self._focus(c, focus)

    def _focus(self, c: Client, focus: Focus) -> None:
        self.focus = focus
        self.quick = Descent(self.training, c, focus.span) if self._plain and focus.whole else None

    def refocus(self, c: Client) -> bool:
        """After parts may have frozen layers: whether anything is left to train."""
        self._focus(c, Focus.of(self.training, c))
        return self.focus.span.first < self.focus.span.last

    def __call__(self, c: Client, batch: Batch) -> tuple[Tensor, Tensor]:
        """The parameters after a step, and the data term before it."""
        if self.quick is not None:
            return self.quick.params, self.quick.step(batch, c.facts.lr)
        span, _, mask, low, high = self.focus
        free = c.params[low:high].detach().requires_grad_()
        loss, (data_term, statistics) = objective(self.training, c, free, span, batch)
        (grad,) = torch.autograd.grad(loss, free)
        if high - low < self.training.net.size:
            grad = pad(grad, (low, self.training.net.size - high))
        with torch.no_grad():
            params, self.state = move(self.training, c, self.state, grad, mask, c.facts.lr, statistics)
        return params, data_term


class Descent:
    """Steps of plain SGD on the data term alone, as `objective` and `move` do them, in place on a copy of the model.

    Most steps of most methods are these. Gradients are never gathered in one vector and nothing is copied from step to
    step, which makes them as quick as a bare PyTorch loop; layers outside ``span`` cost no backward pass.
    """

    def __init__(self, training: Training, c: Client, span: Span) -> None:
        self.training = training
        self._pass = Pass(c.key, c.step)  # which nothing here asks for
        self.params = c.params.detach().clone()
        slots = training.net.layout.slots
        self._tensors = training.net.layout.tensors(self.params)
        moving = [i for i, slot in enumerate(slots) if span.first <= slot.layer < span.last]
        for i in moving:
            self._tensors[i] = self._tensors[i].detach().requires_grad_()
        self._leaves = [self._tensors[i] for i in moving]

    def step(self, batch: Batch, lr: Tensor) -> Tensor:
        """Moves ``params`` by one step and gives the data term before it."""
        out, _ = forward(self.training, self._tensors, batch.x, self._pass)
        loss = self.training.problem.mean_loss(out.logits, batch)
        grads = torch.autograd.grad(loss, self._leaves, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            for leaf, grad in zip(self._leaves, grads, strict=True):
                leaf.addcmul_(grad, lr, value=-1.0)
        return loss.detach()
