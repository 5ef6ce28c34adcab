"""The registry of fleet layers, and the short form that stacks them: ``speed_classes(...)+loss(probability=0.1)``.

A layer is a function ``(fleet, key, **arguments) -> fleet``. The decorator `layer` registers it under its own name and
gives it a key of its own, folded from its name and how often that name was used before: adding a layer leaves the draws
of all others alone, and ``loss(...)+loss(...)`` draws twice.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from motley.core.errors import InputError
from motley.core.keys import Key
from motley.core.registry import Registry, parse
from motley.fleet.fleet import Fleet

FLEETS: Registry[Fleet] = Registry("fleet layer")


def layer(factory: Callable[..., Fleet]) -> Callable[..., Fleet]:
    """Registers a layer; the fleet remembers its name and arguments."""
    signature = inspect.signature(factory)
    name = factory.__name__

    @functools.wraps(factory)
    def make(fleet: Fleet, key: Key, **arguments: Any) -> Fleet:
        before = sum(done == name or done.startswith(f"{name}(") for done in fleet.layers)
        bound = signature.bind(fleet, key.fold(name, before), **arguments)
        made = factory(*bound.args, **bound.kwargs)
        return made.with_(layers=(*made.layers, _written(name, arguments)))

    return FLEETS.add(hidden=("fleet", "key"))(make)


def _written(name: str, arguments: dict[str, Any]) -> str:
    """A layer as a person would write it: 1e7, not 10000000.0."""
    inner = ", ".join(f"{key}={_brief(value)}" for key, value in arguments.items())
    return f"{name}({inner})" if inner else name


def _brief(value: Any) -> str:
    short = f"{value:g}" if isinstance(value, float) else repr(value)
    return short.replace("e+0", "e") if isinstance(value, float) and float(short) == value else repr(value)


def preset(factory: Callable[..., Fleet]) -> Callable[..., Fleet]:
    """Registers a named stack of layers: it gives the same fleet as writing them out."""
    return FLEETS.add(hidden=("fleet", "key"), preset=True)(factory)


def make_fleet(spec: str, n_clients: int, key: Key, clusters: NDArray[np.int64] | None = None) -> Fleet:
    """Stacks the layers of a specification on an ideal fleet.

    ``clusters`` [N] says which group each client belongs to, where the data have groups.

        >>> fleet = make_fleet("uniform_spread(ratio=6)+bernoulli(p=0.5)", 100, Key.root(7))
        >>> fleet.layers
        ('ideal', 'uniform_spread(ratio=6)', 'bernoulli(p=0.5)')
    """
    fleet = Fleet.ideal(n_clients, key)
    if clusters is not None:
        fleet = fleet.with_(clusters=np.asarray(clusters, np.int64))
    for call in parse(spec, "fleet"):
        fleet = FLEETS.make(call.name, fleet, key, **call.arguments)
    return fleet


def number(name: str, value: Any, low: float, high: float = float("inf"), *, strict: bool = False) -> float:
    """A number of a layer within [low, high] (or above ``low``, if strict); otherwise a sentence."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not (low < value if strict else low <= value) or not value <= high:
        bound = f"above {low:g}" if strict else f"at least {low:g}"
        allowed = bound if high == float("inf") else f"from {low:g} to {high:g}"
        raise InputError(f"The fleet's '{name}' is {value!r}; it must be a number {allowed}.")
    return float(value)


def count(name: str, value: Any, low: int) -> int:
    """A whole number of a layer, at least ``low``; otherwise a sentence."""
    if number(name, value, low) != int(value):
        raise InputError(f"The fleet's '{name}' is {value!r}; it must be a whole number of at least {low}.")
    return int(value)


def numbers(name: str, values: ArrayLike, low: float, high: float = float("inf")) -> NDArray[np.float64]:
    """A list of numbers of a layer within [low, high]; otherwise a sentence."""
    if not isinstance(values, (list, tuple, np.ndarray)) or len(values) == 0:
        raise InputError(f"The fleet's '{name}' is {values!r}; it must be a list of numbers such as [0.5, 0.5].")
    return np.array([number(name, value, low, high) for value in values])
