"""Every registered part under its own name: ``from motley.parts import proximal``."""

from __future__ import annotations

from collections.abc import Callable

import motley.methods  # noqa: F401  (its rooms register the parts)
from motley.core.part import PARTS, Part


def __getattr__(name: str) -> Callable[..., Part]:
    if name not in PARTS:
        raise AttributeError(f"there is no part named '{name}'; 'motley list parts' shows all")
    return PARTS[name].factory


def __dir__() -> list[str]:
    return sorted(PARTS.entries)
