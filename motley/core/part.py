"""Parts and their composition: a method is a handful of small records of pure hooks.

Each hook has a place (client or server) and a rule for how several parts share it:

ONE      at most one part may fill it; two are refused with a sentence that names both
CHAIN    each receives what the one before returned, in the order of composition
SUM      the results are added
PRODUCT  the results are multiplied
EACH     every part for itself, with its own state
REVERSE  a chain run backwards (undoes a CHAIN)
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from motley.core.errors import ConflictError, InputError
from motley.core.ranges import check
from motley.core.registry import Registry
from motley.core.schedule import Schedule

Hook = Callable[..., Any]


class Rule(NamedTuple):
    """Where a hook runs, how parts share it, and how it is called."""

    place: str
    shared: str
    signature: str
    decides: str


HOOKS: dict[str, Rule] = {
    "init": Rule("server", "EACH", "(setting) -> s", "the part's own server state"),
    "select": Rule("server", "ONE", "(s, rnd, pool) -> ids", "who trains"),
    "plan": Rule("server", "CHAIN", "(s, rnd, ids, plan) -> plan", "how much each one trains"),
    "send": Rule("server", "EACH", "(s, rnd) -> tree", "what goes down beside the weights"),
    "keep": Rule("client", "EACH", "(net, start, facts) -> tree", "what stays on the client"),
    "trainable": Rule("client", "PRODUCT", "(net, facts) -> [L]", "which layers may change"),
    "width": Rule("client", "ONE", "(net, facts) -> 0-d", "which share of each hidden layer is trained"),
    "begin": Rule("client", "CHAIN", "(c, data) -> c", "what happens before the first step"),
    "view": Rule("client", "CHAIN", "(c, params) -> params", "the weights the forward pass sees"),
    "logits": Rule("client", "CHAIN", "(c, batch, logits) -> logits", "the logits the loss sees"),
    "penalty": Rule("client", "SUM", "(c, batch, out) -> scalar", "terms of the loss"),
    "gradient": Rule("client", "CHAIN", "(c, grad) -> grad", "what happens to the gradient"),
    "epoch": Rule("client", "CHAIN", "(c) -> c", "what happens after each local epoch"),
    "measure": Rule("client", "EACH", "(c, batch) -> tree", "what is averaged over its minibatches after training"),
    "report": Rule("client", "CHAIN", "(c, data) -> (c, extras or None)", "what goes up beside the weights"),
    "encode": Rule("client", "CHAIN", "(c, payload) -> payload", "what is done to the update on the way"),
    "decode": Rule("server", "REVERSE", "(payload) -> payload", "how it is undone, for one update"),
    "observe": Rule("server", "EACH", "(s, rnd, updates) -> s", "what the server learns from arrivals"),
    "conclude": Rule(
        "server", "EACH", "(s, rnd, outcomes) -> s", "what it learns when tasks end, at every round's end"
    ),
    "weigh": Rule("server", "PRODUCT", "(s, rnd, updates) -> [K]", "the weight of each update"),
    "merge": Rule("server", "ONE", "(s, rnd, params, updates, weights) -> params", "updates into one model"),
    "step": Rule("server", "CHAIN", "(s, rnd, old, new, updates) -> (new, s)", "how the global model moves"),
}


@dataclass(frozen=True)
class Part:
    """One ingredient of a method: both halves of it, every hook optional."""

    name: str = ""
    seam: str = ""
    init: Hook | None = None
    select: Hook | None = None
    plan: Hook | None = None
    send: Hook | None = None
    keep: Hook | None = None
    trainable: Hook | None = None
    width: Hook | None = None
    begin: Hook | None = None
    view: Hook | None = None
    logits: Hook | None = None
    penalty: Hook | None = None
    gradient: Hook | None = None
    epoch: Hook | None = None
    measure: Hook | None = None
    report: Hook | None = None
    encode: Hook | None = None
    decode: Hook | None = None
    observe: Hook | None = None
    conclude: Hook | None = None
    weigh: Hook | None = None
    merge: Hook | None = None
    step: Hook | None = None
    dials: Mapping[str, Schedule] = field(default_factory=dict)  # numbers client hooks read as c.dials[name][...]
    refuses: Mapping[str, str] = field(default_factory=dict)  # other part -> why the two have no meaning together
    origin: tuple[str, str, tuple[tuple[str, Any], ...]] | None = None  # module, factory, arguments

    @property
    def filled(self) -> tuple[str, ...]:
        """Names of the hooks this part fills."""
        return tuple(name for name in HOOKS if getattr(self, name) is not None)

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.origin[2]) if self.origin else {}

    def __repr__(self) -> str:
        inner = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        return f"{self.name}({inner})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Part):
            return NotImplemented
        if self.origin is None or other.origin is None:
            return self is other
        return self.origin == other.origin

    def __hash__(self) -> int:
        return hash((self.name, self.seam))

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is None:
            raise InputError(
                f"The part '{self.name}' was made by hand, so another process cannot rebuild it; "
                "make it in a function decorated with @part, or use executor=loop."
            )
        module, factory, arguments = self.origin
        return _rebuild, (module, factory, arguments)


def _rebuild(module: str, factory: str, arguments: tuple[tuple[str, Any], ...]) -> Part:
    made: Part = getattr(importlib.import_module(module), factory)(**dict(arguments))
    return made


PARTS: Registry[Part] = Registry("part")


def part(
    seam: str,
    *,
    neutral: Mapping[str, Any] | None = None,
    example: Mapping[str, Any] | None = None,
    protocol: str | None = None,
    silent: str = "",
) -> Callable[[Callable[..., Part]], Callable[..., Part]]:
    """Registers a factory of parts under its own name.

    seam: which decision it makes (`motley list parts` groups by it).
    neutral: arguments with which the part does nothing; the contract test checks that.
    example: arguments with which the part visibly does something, for the contract test.
    protocol: the protocol on which it does so, where it is not the synchronous one.
    silent: why it changes no model by itself, where it only watches or tells.
    """

    def wrap(factory: Callable[..., Part]) -> Callable[..., Part]:
        signature = inspect.signature(factory)

        @functools.wraps(factory)
        def make(*args: Any, **kwargs: Any) -> Part:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            check(f"The part '{factory.__name__}'", factory, bound.arguments)
            origin = (factory.__module__, factory.__name__, tuple(bound.arguments.items()))
            return replace(factory(*args, **kwargs), name=factory.__name__, seam=seam, origin=origin)

        meta: dict[str, Any] = {"neutral": neutral, "example": example or {}, "protocol": protocol, "silent": silent}
        return PARTS.add(seam=seam, **meta)(make)

    return wrap


class Method:
    """Parts composed into one method; `compose` makes it."""

    def __init__(self, parts: tuple[Part, ...], protocol: str, options: Mapping[str, Any], name: str) -> None:
        self.parts = parts
        self.protocol = protocol
        self.options = dict(options)
        self.name = name
        self._hooks = {hook: tuple((p.name, getattr(p, hook)) for p in parts if getattr(p, hook)) for hook in HOOKS}
        # True where clients decide during training what they train, so that its cost is known only afterwards
        self.adaptive = self.has("epoch")

    def hooks(self, hook: str) -> tuple[tuple[str, Hook], ...]:
        """The (part name, function) pairs that fill a hook, in order of composition."""
        return self._hooks[hook]

    def has(self, hook: str) -> bool:
        return bool(self._hooks[hook])

    def __reduce__(self) -> tuple[Any, ...]:
        return Method, (self.parts, self.protocol, self.options, self.name)

    def __repr__(self) -> str:
        rows = [f"{self.name or 'method'} on the {self.protocol} protocol"]
        for p in self.parts:
            rows.append(f"  {p.seam:<10} {p!r} fills {', '.join(p.filled)}")
        for hook, default in _DEFAULTS.items():
            if not self.has(hook):
                rows.append(f"  {hook:<10} default: {default}")
        return "\n".join(rows)


_DEFAULTS = {
    "select": "uniform without replacement",
    "merge": "weighted mean, per layer over those who trained it",
    "step": "replace",
}

Composable = Part | Method


def compose(
    *items: Composable, protocol: str | None = None, options: Mapping[str, Any] | None = None, name: str | None = None
) -> Method:
    """Builds a method from parts and other methods, and checks that they fit together."""
    parts: list[Part] = []
    protocols: dict[str, str] = {}
    merged: dict[str, Any] = {}
    for item in items:
        if isinstance(item, Method):
            if item.protocol != "synchronous":
                protocols[item.protocol] = item.name
            merged.update(item.options)
        for p in item.parts if isinstance(item, Method) else (item,):
            _add(parts, p)
    _check(parts)
    if protocol is None:
        if len(protocols) > 1:
            told = " and ".join(f"'{who}' needs the {what} protocol" for what, who in protocols.items())
            raise ConflictError(f"These methods cannot be combined: {told}.")
        protocol = next(iter(protocols), "synchronous")
    label = name or "+".join(item.name for item in items if item.name)
    return Method(tuple(parts), protocol, {**merged, **(options or {})}, label)


def _add(parts: list[Part], new: Part) -> None:
    if not new.name:
        raise InputError("A part needs a name: Part(name='...', ...), or a factory decorated with @part.")
    for old in parts:
        if old.name == new.name:
            if old == new:
                return
            raise ConflictError(f"The part '{new.name}' is there twice with different arguments: {old!r} and {new!r}.")
    parts.append(new)


def _check(parts: list[Part]) -> None:
    for hook, rule in HOOKS.items():
        fillers = [p.name for p in parts if getattr(p, hook) is not None]
        if rule.shared == "ONE" and len(fillers) > 1:
            raise ConflictError(
                f"The parts '{fillers[0]}' and '{fillers[1]}' both decide {rule.decides} (hook '{hook}'); "
                "keep one of them."
            )
    names = {p.name for p in parts}
    for p in parts:
        for other, why in p.refuses.items():
            if other in names:
                raise ConflictError(f"The parts '{p.name}' and '{other}' cannot be combined: {why}.")
