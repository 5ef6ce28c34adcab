"""What the arguments of parts, methods and protocols may be, said by their annotations and checked when they are made.

``alpha: Share = 0.5`` is a number from 0 to 1, ``tiers: Count = 5`` a whole number of at least 1. Plain annotations
count too: an ``int`` is a whole number, a ``bool`` true or false. Whatever is neither a simple type, nor a union, list
or tuple of such, is not checked.
"""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Union

from motley.core.errors import InputError
from motley.core.schedule import Schedule


@dataclass(frozen=True)
class Within:
    """Numbers between two ends; ``open``: the lower end is not one of them."""

    low: float = -math.inf
    high: float = math.inf
    open: bool = False

    def holds(self, value: Any) -> bool:
        return bool((self.low < value if self.open else self.low <= value) and value <= self.high)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"above {self.low:g}" if self.open else f"of at least {self.low:g}"
        return f"above {self.low:g} and up to {self.high:g}" if self.open else f"from {self.low:g} to {self.high:g}"


Share = Annotated[float, Within(0.0, 1.0)]
PositiveShare = Annotated[float, Within(0.0, 1.0, open=True)]
Positive = Annotated[float, Within(0.0, open=True)]
NotNegative = Annotated[float, Within(0.0)]
Count = Annotated[int, Within(1)]
CountOrZero = Annotated[int, Within(0)]
ShareSchedule = Annotated[Schedule, Within(0.0, 1.0)]
NotNegativeSchedule = Annotated[Schedule, Within(0.0)]


def check(what: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Refuses arguments that a factory's annotations do not allow."""
    hints = _hints(factory)
    for key, value in arguments.items():
        if key in hints and not _fits(hints[key], value):
            raise InputError(f"{what} has {key}={value!r}; it must be {' or '.join(_told(hints[key]))}.")


@functools.cache
def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(factory, include_extras=True)
    except NameError:  # names that only a type checker sees
        return {}


_SIMPLE: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    type(None): "none",
}

_MANY: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "texts"}


def _fits(hint: Any, value: Any, within: tuple[Within, ...] = ()) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _fits(inner[0], value, _ends(inner))
    if origin in (Union, types.UnionType):
        return any(_fits(one, value, within) for one in inner)
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(_fits(inner[0], one) for one in value)
    return value in inner if origin is Literal else _simply_fits(hint, origin, value, within)


def _simply_fits(hint: Any, origin: Any, value: Any, within: tuple[Within, ...]) -> bool:
    if hint in (int, float):
        number = isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
        return number and not math.isnan(value) and all(one.holds(value) for one in within)
    if hint in (bool, str, type(None)):
        return isinstance(value, hint)
    return callable(value) if origin is Callable else True


def _ends(inner: tuple[Any, ...]) -> tuple[Within, ...]:
    return tuple(one for one in inner[1:] if isinstance(one, Within))


def _told(hint: Any, within: tuple[Within, ...] = ()) -> list[str]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _told(inner[0], _ends(inner))
    if origin in (Union, types.UnionType):
        return list(dict.fromkeys(text for one in inner for text in _told(one, within)))
    if origin is Literal:
        return [f"one of {', '.join(map(repr, inner))}"]
    if origin in (list, tuple):
        return [f"a list of {_MANY.get(inner[0], 'such')}"]
    if hint in _SIMPLE:
        return [_SIMPLE[hint] + "".join(f" {one}" for one in within if hint in (int, float))]
    return []  # a schedule: it cannot be written in a short form
