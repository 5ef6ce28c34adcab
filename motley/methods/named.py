"""Named methods: compositions of parts. ``fedprox(mu=0.1)+ama`` names, configures and combines them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from motley.core.errors import InputError, UnknownNameError
from motley.core.part import PARTS, Composable, Method, Part, compose
from motley.core.registry import Registry, parse

METHODS: Registry[Method] = Registry("method", beside=PARTS)


def method_of(factory: Callable[..., Part], name: str, summary: str) -> None:
    """Registers a method that is one part and nothing else, with all of the part's arguments."""

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Method:
        return compose(factory(*args, **kwargs), name=name)

    make.__doc__ = summary
    METHODS.add(name)(make)


def make_method(spec: str, params: Mapping[str, Mapping[str, Any]] | None = None) -> Method:
    """A method from its short form; single parts may stand in it beside methods.

    params: further arguments by name, ``{"fedprox": {"mu": 0.1}}``; they win over those in the short form.
    """
    given = {name: dict(arguments) for name, arguments in (params or {}).items()}
    items: list[Composable] = []
    for name, arguments in parse(spec, "method"):
        merged = {**arguments, **given.pop(name, {})}
        if name in METHODS:
            items.append(METHODS.make(name, **merged))
        elif name in PARTS:
            items.append(PARTS.make(name, **merged))
        else:
            raise UnknownNameError("method or part", name, [*METHODS.entries, *PARTS.entries])
    if given:
        raise InputError(f"params are given for '{next(iter(given))}', which is not in the method '{spec}'.")
    return compose(*items, name=spec.replace(" ", ""))
