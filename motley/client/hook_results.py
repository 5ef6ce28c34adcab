"""What client hooks return, looked at by shape alone: it costs no time on a device and holds under ``vmap``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from motley.core.errors import HookError
from motley.core.types import Client, Tree


def a_tensor(part: str, hook: str, found: Any, shape: tuple[int, ...]) -> Tensor:
    """A hook's result that must be a tensor of a shape."""
    if not isinstance(found, Tensor) or found.shape != shape:
        raise wrong(part, hook, found, f"a tensor of shape {shape}")
    return found


def a_number(part: str, hook: str, found: Any) -> Tensor | float:
    """A hook's result that must be one number."""
    if not isinstance(found, Tensor) and isinstance(found, int | float):
        return found
    return a_tensor(part, hook, found, ())


def a_client(part: str, hook: str, found: Any, before: Client) -> Client:
    """A hook's result that must be the client, changed in its values and not in its shapes."""
    if not isinstance(found, Client):
        raise wrong(part, hook, found, "the client: c, or c.with_(...)")
    for name in ("params", "trained"):
        had, has = getattr(before, name), getattr(found, name)
        if not isinstance(has, Tensor) or has.shape != had.shape:
            raise wrong(part, hook, has, f"a client whose '{name}' has the shape {tuple(had.shape)}")
    return found


def a_pair(part: str, hook: str, found: Any, before: Client) -> tuple[Client, Tree | None]:
    """A hook's result that must be the client and what goes up."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise wrong(part, hook, found, "a pair: the client, and what goes up (None: nothing)")
    return a_client(part, hook, found[0], before), found[1]


def wrong(part: str, hook: str, got: Any, wanted: str) -> HookError:
    """The sentence that names part and hook."""
    told = f"a tensor of shape {tuple(got.shape)}" if isinstance(got, Tensor) else repr(got)
    told = told if len(told) <= 60 else f"{told[:57]}..."
    return HookError(f"The hook '{hook}' of the part '{part}' returned {told}; it must return {wanted}.")
