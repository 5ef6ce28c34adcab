"""Fixed memory for captured graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from motley.core.types import Client
from motley.engine.batched.trace import Cache


class Buffers:
    """Fixed memory for one shape of group; captured graphs read and write it."""

    def __init__(self, content: tuple[Any, ...], capacity: int) -> None:
        c, state, batches, steps, per_epoch = content
        k = len(steps)
        self.c: Client = tree_map(_fresh, c).with_(params=_aligned(c.params))
        self.state = tree_map(_aligned, state)
        self.rows = torch.zeros(capacity, k, batches.rows.shape[-1], dtype=torch.int64, device=steps.device)
        self.mask = None if batches.mask is None else torch.zeros(self.rows.shape, device=steps.device)
        self.steps, self.per_epoch = _fresh(steps), _fresh(per_epoch)
        self.s = torch.zeros(1, dtype=torch.int64, device=steps.device)
        self.losses = torch.zeros(capacity, k, device=steps.device)
        self.graphs: Cache[Callable[[], None]] = Cache(48)

    def load(self, content: tuple[Any, ...]) -> None:
        c, state, batches, steps, per_epoch = content
        n = len(batches.rows)
        mask = None if self.mask is None else self.mask[:n]
        old = tree_leaves((self.c, self.state, self.rows[:n], mask, self.steps, self.per_epoch))
        _copy(old, tree_leaves((c, state, batches.rows, batches.mask, steps, per_epoch)))
        self.s.zero_()

    def take(self, c: Client) -> None:
        """Takes over what epoch hooks changed beside the parameters."""
        if c is self.c:
            return
        new = (c.trained, c.own, {name: c.notes[name] for name in self.c.notes})
        tree_map(lambda old, fresh: old.copy_(fresh), (self.c.trained, self.c.own, self.c.notes), new)

    def snapshot(self) -> Callable[[], Any]:
        """Remembers the moving buffers; the returned function puts them back (capturing runs the step for real)."""
        moving = (self.c.params, self.state, self.s, self.losses)
        saved = tree_map(lambda leaf: leaf.clone(), moving)
        return lambda: tree_map(lambda old, new: old.copy_(new), moving, saved)


def _copy(old: list[Any], new: list[Any]) -> None:
    """Copies many tensors with few kernels: torch has one for contiguous tensors of one type."""
    alike: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
    for into, given in zip(old, new, strict=True):
        if not isinstance(into, Tensor):
            continue
        plain = into.is_contiguous() and given.is_contiguous() and into.dtype == given.dtype
        places, values = alike.setdefault(into.dtype if plain else id(into), ([], []))
        places.append(into)
        values.append(given)
    for places, values in alike.values():
        torch._foreach_copy_(places, values)


def _aligned(leaf: Tensor) -> Tensor:
    """As `_fresh`; the rows of a table begin where wide loads can."""
    if leaf.dim() != 2:
        return _fresh(leaf)
    rows, columns = leaf.shape
    return torch.empty(rows, -(-columns // 16) * 16, dtype=leaf.dtype, device=leaf.device)[:, :columns].copy_(leaf)


def _fresh(leaf: Tensor) -> Tensor:
    return torch.empty(leaf.shape, dtype=leaf.dtype, device=leaf.device).copy_(leaf)
