"""Trees of many clients: one tensor per leaf with clients along the first axis, and how they get to a device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from motley.core.types import Tree


def tree_bytes(tree: Tree) -> int:
    """Bytes of all tensors in a tree."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def sent(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device; a GPU still at work does not make the host wait."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def stack_rows(rows: list[Tensor]) -> Tensor:
    """`torch.stack`, without a copy where the rows already lie one after the other in one tensor."""
    first = rows[0]
    width = first.numel()
    if width and first._base is not None and first.is_contiguous():
        step = width * first.element_size()
        begin, end = first.data_ptr(), first.untyped_storage().data_ptr() + first.untyped_storage().nbytes()
        wanted = range(begin, begin + len(rows) * step, step)
        if wanted.stop <= end and [row.data_ptr() for row in rows] == list(wanted):
            return first.as_strided((len(rows), *first.shape), (width, *first.stride()))
    return torch.stack(rows)


def stack_trees(trees: list[Tree]) -> Tree:
    """Stacks equal trees along a new leading axis."""
    first = trees[0]
    if isinstance(first, Tensor):
        return stack_rows(trees)
    if isinstance(first, dict):
        return {key: stack_trees([tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple):
        values = [stack_trees(list(column)) for column in zip(*trees, strict=True)]
        return type(first)(*values) if hasattr(first, "_fields") else tuple(values)
    if first is None:
        return None
    raise TypeError(f"A tree holds tensors, dicts and tuples, not {type(first).__name__}.")
