"""Named methods, each a composition of parts; each is here under its name: ``motley.methods.fedavg(...)``."""

from __future__ import annotations

from collections.abc import Callable

from motley.core.part import Method
from motley.methods import ama_fes, baselines, logits, radfed, rebafl, system
from motley.methods.registry import METHODS, make_method

__all__ = ["METHODS", "ama_fes", "baselines", "logits", "make_method", "radfed", "rebafl", "system"]


def __getattr__(name: str) -> Callable[..., Method]:
    if name not in METHODS:
        raise AttributeError(f"there is no method named '{name}'; 'motley list methods' shows all")
    return METHODS[name].factory


# A method wins over a module of the same name: motley.methods.rebafl is the method.
globals().update({entry.name: entry.factory for entry in METHODS})
