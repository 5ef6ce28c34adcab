"""Trees of tensors as flat tables of named tensors, for files and wires (never pickle)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from motley.core.types import Tree

# What holds no tensor is written as a name of its own with an empty tensor, so that a tree comes back as it was.
_EMPTY: dict[str, Any] = {"!none": None, "!dict": {}, "!tuple": ()}


def to_named(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """Every tensor of a tree by its path: dict keys joined by '/', positions of tuples as '#i'."""
    if isinstance(tree, Tensor):
        return {prefix or ".": tree}
    for mark, empty in _EMPTY.items():
        if type(tree) is type(empty) and not tree:
            return {_join(prefix, mark): torch.zeros(0, dtype=torch.uint8)}
    named: dict[str, Tensor] = {}
    for key, value in _items(tree, prefix):
        named.update(to_named(value, _join(prefix, key)))
    return named


def _join(prefix: str, key: str) -> str:
    return f"{prefix}/{key}" if prefix else key


def _items(tree: Tree, prefix: str) -> list[tuple[str, Tree]]:
    if isinstance(tree, dict):
        for key in tree:
            if not isinstance(key, str) or not key or key[0] in "#!" or "/" in key or key == ".":
                raise TypeError(
                    f"The state of a part has the key {key!r} (at '{prefix}'); keys are words without '/', '#' and '!'."
                )
        return list(tree.items())
    if type(tree) is tuple:
        return [(f"#{i}", value) for i, value in enumerate(tree)]
    raise TypeError(f"The state of a part holds tensors, dicts and tuples, not {type(tree).__name__} (at '{prefix}').")


def from_named(named: dict[str, Tensor]) -> Tree:
    """The tree that `to_named` took apart."""
    if set(named) == {"."}:
        return named["."]
    root: dict[str, Any] = {}
    for path, value in named.items():
        here = root
        *above, last = path.split("/")
        for key in above:
            here = here.setdefault(key, {})
        here[last] = value
    return _tuples(root)


def _tuples(tree: Any) -> Tree:
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1 and (mark := next(iter(tree))) in _EMPTY:
        empty = _EMPTY[mark]
        return {} if empty == {} else empty
    inner = {key: _tuples(value) for key, value in tree.items()}
    if inner and all(key.startswith("#") for key in inner):
        return tuple(inner[f"#{i}"] for i in range(len(inner)))
    return inner
