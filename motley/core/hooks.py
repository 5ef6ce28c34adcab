"""The hooks of a part: one `Protocol` each, where it runs, and how several parts share it.

ONE      at most one part may fill it; two are refused with a sentence that names both
CHAIN    each receives what the one before returned, in the order of composition
SUM      the results are added
PRODUCT  the results are multiplied
EACH     every part for itself, with its own state
REVERSE  a chain run backwards (undoes a CHAIN)

Server hooks get their part's state ``s`` and the round ``rnd`` with the part's numbers (``rnd.dials``); client hooks
get the client ``c`` and what the part finds there, ``me`` (``me.down``, ``me.own``, ``me.notes``, ``me.dials``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from motley.core.bill import Bill, Cost
from motley.core.errors import HookError
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.types import (
    Batch,
    Client,
    Data,
    Facts,
    Mine,
    Outcomes,
    Output,
    Plan,
    Pool,
    Round,
    Setting,
    Tree,
    Updates,
)

# ------------------------------------------------------------------ on the server


class Init(Protocol):
    """The part's own server state."""

    def __call__(self, setting: Setting) -> Tree: ...


class Select(Protocol):
    """Who trains: ids in the order in which they are dispatched."""

    def __call__(self, s: Tree, rnd: Round, pool: Pool) -> Tensor: ...


class Planned(Protocol):
    """How much each one trains."""

    def __call__(self, s: Tree, rnd: Round, ids: Tensor, plan: Plan) -> Plan: ...


class Send(Protocol):
    """What goes down beside the weights."""

    def __call__(self, s: Tree, rnd: Round) -> Tree: ...


class Decode(Protocol):
    """How `encode` is undone, for one update."""

    def __call__(self, payload: Tree) -> Tree: ...


class Observe(Protocol):
    """What the server learns from arrivals."""

    def __call__(self, s: Tree, rnd: Round, updates: Updates) -> Tree: ...


class Conclude(Protocol):
    """What it learns when tasks end, at every round's end."""

    def __call__(self, s: Tree, rnd: Round, outcomes: Outcomes) -> Tree: ...


class Weigh(Protocol):
    """The weight of each update: [K]."""

    def __call__(self, s: Tree, rnd: Round, updates: Updates) -> Tensor: ...


class Merge(Protocol):
    """Updates into one model: [P]."""

    def __call__(self, s: Tree, rnd: Round, params: Tensor, updates: Updates, weights: Tensor) -> Tensor: ...


class Step(Protocol):
    """How the global model moves: the model [P] and the part's state."""

    def __call__(self, s: Tree, rnd: Round, old: Tensor, new: Tensor, updates: Updates) -> tuple[Tensor, Tree]: ...


# ------------------------------------------------------------------ on the client


class Keep(Protocol):
    """What stays on the client, as it is before its first task."""

    def __call__(self, net: Network, start: Tensor, facts: Facts) -> Tree: ...


class Trainable(Protocol):
    """Which layers may change: [L]."""

    def __call__(self, net: Network, facts: Facts) -> Tensor: ...


class Adapt(Protocol):
    """The module that is trained, made of the one that was given."""

    def __call__(self, module: nn.Module, key: Key) -> nn.Module: ...


class Sent(Protocol):
    """Which layers are sent, down and up: [L]."""

    def __call__(self, net: Network) -> Tensor: ...


class Serve(Protocol):
    """The model a client uses itself: [P]."""

    def __call__(self, net: Network, model: Tensor, mine: Tree) -> Tensor: ...


class Width(Protocol):
    """Which share of each hidden layer is trained: 0-d."""

    def __call__(self, net: Network, facts: Facts) -> Tensor: ...


class Billed(Protocol):
    """What a task costs beside what is counted."""

    def __call__(self, net: Network, cost: Cost, facts: Facts, bill: Bill) -> Bill: ...


class Begin(Protocol):
    """What happens before the first step."""

    def __call__(self, c: Client, me: Mine, data: Data) -> Client: ...


class View(Protocol):
    """The weights the forward pass sees: [P]."""

    def __call__(self, c: Client, me: Mine, params: Tensor) -> Tensor: ...


class Logits(Protocol):
    """The logits the loss sees: [B, C]."""

    def __call__(self, c: Client, me: Mine, batch: Batch, logits: Tensor) -> Tensor: ...


class Penalty(Protocol):
    """A term of the loss: 0-d."""

    def __call__(self, c: Client, me: Mine, batch: Batch, out: Output) -> Tensor: ...


class Gradient(Protocol):
    """What happens to the gradient: [P]."""

    def __call__(self, c: Client, me: Mine, grad: Tensor) -> Tensor: ...


class Epoch(Protocol):
    """What happens after each local epoch."""

    def __call__(self, c: Client, me: Mine) -> Client: ...


class Measure(Protocol):
    """What is averaged over its minibatches after training."""

    def __call__(self, c: Client, me: Mine, batch: Batch) -> Tree: ...


class Reported(Protocol):
    """What goes up beside the weights; None: nothing."""

    def __call__(self, c: Client, me: Mine, data: Data) -> tuple[Client, Tree | None]: ...


class Encode(Protocol):
    """What is done to the update on the way."""

    def __call__(self, c: Client, me: Mine, payload: Tree) -> Tree: ...


class Rule(NamedTuple):
    """Where a hook runs, how parts share it, how it is called, and what it decides."""

    place: str
    shared: str
    kind: type
    decides: str

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of its arguments, in order."""
        return tuple(inspect.signature(self.kind.__call__).parameters)[1:]

    @property
    def signature(self) -> str:
        """As documentation writes it."""
        return f"({', '.join(self.arguments)})"


def _rule(place: str, shared: str, kind: type, decides: str = "") -> Rule:
    return Rule(place, shared, kind, decides or _first_line(kind))


def _first_line(kind: type) -> str:
    line = (kind.__doc__ or "").splitlines()[0].split(":")[0].split(";")[0].rstrip(".")
    return line[0].lower() + line[1:]


HOOKS: dict[str, Rule] = {
    "init": _rule("server", "EACH", Init),
    "select": _rule("server", "ONE", Select, "who trains"),
    "plan": _rule("server", "CHAIN", Planned),
    "send": _rule("server", "EACH", Send),
    "keep": _rule("client", "EACH", Keep),
    "trainable": _rule("client", "PRODUCT", Trainable),
    "adapt": _rule("client", "CHAIN", Adapt),
    "sent": _rule("client", "PRODUCT", Sent),
    "serve": _rule("client", "CHAIN", Serve),
    "width": _rule("client", "ONE", Width, "which share of each hidden layer is trained"),
    "bill": _rule("client", "CHAIN", Billed),
    "begin": _rule("client", "CHAIN", Begin),
    "view": _rule("client", "CHAIN", View),
    "logits": _rule("client", "CHAIN", Logits),
    "penalty": _rule("client", "SUM", Penalty),
    "gradient": _rule("client", "CHAIN", Gradient),
    "epoch": _rule("client", "CHAIN", Epoch),
    "measure": _rule("client", "EACH", Measure),
    "report": _rule("client", "CHAIN", Reported),
    "encode": _rule("client", "CHAIN", Encode),
    "decode": _rule("server", "REVERSE", Decode),
    "observe": _rule("server", "EACH", Observe),
    "conclude": _rule("server", "EACH", Conclude),
    "weigh": _rule("server", "PRODUCT", Weigh),
    "merge": _rule("server", "ONE", Merge, "how updates become one model"),
    "step": _rule("server", "CHAIN", Step),
}

IN_LOSS = ("view", "logits", "penalty")
"""Hooks inside the loss: they may read the parameters that move."""
IN_STEPS = ("trainable", *IN_LOSS, "gradient", "epoch")
"""Hooks that change what a minibatch step does."""


def check_hook(part: str, name: str, hook: Callable[..., Any]) -> None:
    """Refuses a hook whose arguments are not those it is called with; further ones with defaults are its own."""
    wanted, given = HOOKS[name].arguments, _arguments(hook)
    if given is None:
        return
    needed = [p.name for p in given if p.default is p.empty]
    names = [p.name for p in given][: max(len(wanted), len(needed))]
    if [one.lstrip("_") for one in names] != list(wanted):
        told = ", ".join(p.name for p in given)
        raise HookError(
            f"The hook '{name}' of the part '{part}' takes ({told}); it must take ({', '.join(wanted)}): "
            f"it decides {HOOKS[name].decides}."
        )


def _arguments(hook: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """What a function takes; None where that cannot be told, or is anything."""
    try:
        given = list(inspect.signature(hook).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in given):
        return None
    return [p for p in given if p.kind is not p.VAR_KEYWORD]
