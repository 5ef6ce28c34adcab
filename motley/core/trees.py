"""Trees of tensors as flat tables of named tensors, for files and wires (never pickle)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from motley.core.types import Tree


def to_named(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """Every tensor of a tree by its path: dict keys joined by '/', positions of tuples as '#i', None as absent."""
    if isinstance(tree, Tensor):
        return {prefix or ".": tree}
    if tree is None:
        return {}
    named: dict[str, Tensor] = {}
    if isinstance(tree, dict):
        items = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, tuple):
        items = [(f"#{i}", value) for i, value in enumerate(tree)]
    else:
        raise TypeError(
            f"The state of a part holds tensors, dicts and tuples, not {type(tree).__name__} (at '{prefix}')."
        )
    for key, value in items:
        named.update(to_named(value, f"{prefix}/{key}" if prefix else key))
    return named


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
    inner = {key: _tuples(value) for key, value in tree.items()}
    if inner and all(key.startswith("#") for key in inner):
        return tuple(inner[f"#{i}"] for i in range(len(inner)))
    return inner
