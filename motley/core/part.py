"""Parts and their composition: a method is a handful of small records of pure hooks (see `motley.core.hooks`)."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from motley.core import hooks
from motley.core.errors import ConflictError, HookError, InputError
from motley.core.hooks import HOOKS
from motley.core.ranges import check
from motley.core.registry import Registry
from motley.core.schedule import Schedule

Hook = Callable[..., Any]


@dataclass(frozen=True)
class Part:
    """One ingredient of a method: both halves of it, every hook optional."""

    name: str = ""
    seam: str = ""
    init: hooks.Init | None = None
    select: hooks.Select | None = None
    plan: hooks.Planned | None = None
    send: hooks.Send | None = None
    keep: hooks.Keep | None = None
    trainable: hooks.Trainable | None = None
    adapt: hooks.Adapt | None = None
    sent: hooks.Sent | None = None
    serve: hooks.Serve | None = None
    width: hooks.Width | None = None
    bill: hooks.Billed | None = None
    begin: hooks.Begin | None = None
    view: hooks.View | None = None
    logits: hooks.Logits | None = None
    penalty: hooks.Penalty | None = None
    gradient: hooks.Gradient | None = None
    epoch: hooks.Epoch | None = None
    measure: hooks.Measure | None = None
    report: hooks.Reported | None = None
    encode: hooks.Encode | None = None
    decode: hooks.Decode | None = None
    observe: hooks.Observe | None = None
    conclude: hooks.Conclude | None = None
    weigh: hooks.Weigh | None = None
    merge: hooks.Merge | None = None
    step: hooks.Step | None = None
    dials: Mapping[str, Schedule] = field(default_factory=dict)  # numbers hooks read as me.dials[...], rnd.dials[...]
    needs: tuple[str, ...] = ()  # what the problem must offer: labels, features, ...
    refuses: Mapping[str, str] = field(default_factory=dict)  # other part -> why the two have no meaning together
    origin: tuple[str, str, tuple[tuple[str, Any], ...]] | None = None  # module, factory, arguments

    def __post_init__(self) -> None:
        if self.name:  # one without a name cannot be composed; it gets its name, and is checked then
            for name in self.filled:
                hooks.check_hook(self.name, name, getattr(self, name))

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

        _try(make, example or {})
        meta: dict[str, Any] = {"neutral": neutral, "example": example or {}, "protocol": protocol, "silent": silent}
        return PARTS.add(seam=seam, **meta)(make)

    return wrap


def _try(make: Callable[..., Part], example: Mapping[str, Any]) -> None:
    """Makes a part once, so that hooks which cannot be called are told where they are written."""
    try:
        make(**example)
    except HookError:
        raise
    except Exception:  # arguments that only a user can give: it is checked when it is made
        return


class Method:
    """Parts composed into one method; `compose` makes it."""

    def __init__(self, parts: tuple[Part, ...], protocol: str, options: Mapping[str, Any], name: str) -> None:
        self.parts = parts
        self.protocol = protocol
        self.options = dict(options)
        self.name = name
        self._hooks = {hook: tuple((p.name, getattr(p, hook)) for p in parts if getattr(p, hook)) for hook in HOOKS}
        # True where clients decide during training what they train or send, so that its cost is known only afterwards
        self.adaptive = self.has("epoch") or self.has("encode")

    def hooks(self, hook: str) -> tuple[tuple[str, Hook], ...]:
        """The (part name, function) pairs that fill a hook, in order of composition."""
        return self._hooks[hook]

    def has(self, hook: str) -> bool:
        return bool(self._hooks[hook])

    def decode(self, payload: Any) -> Any:
        """Undoes what `encode` did to an update on its way."""
        for _, hook in reversed(self.hooks("decode")):
            payload = hook(payload)
        return payload

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
    merged: dict[str, Any] = {}
    for item in items:
        _check_item(item)
        merged.update(item.options if isinstance(item, Method) else {})
        for p in item.parts if isinstance(item, Method) else (item,):
            _add(parts, p)
    _check(parts)
    label = name or "+".join(item.name for item in items if item.name)
    return Method(tuple(parts), protocol or _protocol(items), {**merged, **(options or {})}, label)


def _check_item(item: object) -> None:
    """Refuses what is neither a part nor a method, such as a name, or a factory that was not called."""
    if not isinstance(item, Part | Method):
        what = getattr(item, "__name__", None)
        hint = f"call {what}()" if callable(item) and what else "call their factories, or give one text, 'fedprox+ama'"
        raise InputError(f"A method is composed of parts and methods, not of {what or repr(item)}; {hint}.")


def _protocol(items: Iterable[Composable]) -> str:
    """The protocol that methods need; two different ones are refused."""
    methods = [item for item in items if isinstance(item, Method) and item.protocol != "synchronous"]
    wanted = {method.protocol: method.name for method in methods}
    if len(wanted) > 1:
        told = " and ".join(f"'{who}' needs the {what} protocol" for what, who in wanted.items())
        raise ConflictError(f"These methods cannot be combined: {told}.")
    return next(iter(wanted), "synchronous")


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
