"""Named methods, each a composition of parts; each is here under its name: ``motley.methods.fedavg(...)``."""

from __future__ import annotations

from collections.abc import Callable

from motley.core.discovery import import_room
from motley.core.part import Method
from motley.methods.named import METHODS, make_method

__all__ = ["METHODS", "make_method"]

import_room("motley.client")
import_room("motley.server")
import_room("motley.methods")


def __getattr__(name: str) -> Callable[..., Method]:
    if name not in METHODS:
        raise AttributeError(f"there is no method named '{name}'; 'motley list methods' shows all")
    return METHODS[name].factory


def __dir__() -> list[str]:
    return sorted([*__all__, *METHODS.entries])
