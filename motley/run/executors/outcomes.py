"""What a group of clients sends, client by client."""

from __future__ import annotations

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from motley.client.trainer import Outcome
from motley.core.types import Tree, stack_rows
from motley.run.executors.group import Group


def outcomes(
    group: Group, adaptive: bool, payload: Tree, trained: Tensor, extras: Tree, own: Tree, loss: Tensor
) -> list[Outcome]:
    """From stacked results to one per client that trained; adaptive: parts may have frozen layers while training."""
    real = sum(1 for count in group.counts if count > 0)
    columns = zip(
        _rows(payload, real),
        trained[:real].cpu().unbind() if adaptive else [group.trained] * real,
        _rows(extras, real),
        [_cloned(row) if row else row for row in _rows(own, real)],  # kept for long: no view of all the others
        loss[:real].unbind(),  # left on the device: whoever asks for it waits
        strict=True,
    )
    return [Outcome(*row) for row in columns]


def together(found: list[Outcome]) -> list[Outcome]:
    """The same, with their payloads one after the other in one tensor: whoever stacks them then copies nothing."""
    payloads = [outcome.payload for outcome in found]
    if not payloads or not all(isinstance(payload, Tensor) for payload in payloads):
        return found
    rows = stack_rows(payloads)
    if rows.data_ptr() == payloads[0].data_ptr():
        return found  # they lie so already
    return [outcome._replace(payload=row) for outcome, row in zip(found, rows.unbind(), strict=True)]


class Rows:
    """Changes of weights one after the other in one tensor, as they come: whoever stacks them then copies nothing."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._rows: tuple[Tensor, ...] = ()

    def put(self, place: int, change: Tensor) -> Tensor:
        """The change [P], copied to its place; as it is where it is of another kind than the first."""
        if not self._rows:
            self._rows = change.new_empty(self.n, len(change)).unbind()
        row = self._rows[place]
        return row.copy_(change) if (row.dtype, row.shape) == (change.dtype, change.shape) else change.clone()


def apart(outcome: Outcome) -> Outcome:
    """An outcome that is kept for long: its change no longer keeps those of its whole round."""
    change = outcome.payload
    return outcome._replace(payload=change.clone()) if isinstance(change, Tensor) else outcome


def _cloned(tree: Tree) -> Tree:
    return tree_map(lambda leaf: leaf.clone(), tree)


def _rows(tree: Tree, n: int) -> list[Tree]:
    """The first n rows of a stacked tree, as trees (views)."""
    if isinstance(tree, Tensor):
        return list(tree[:n].unbind())
    leaves, spec = tree_flatten(tree)
    if not leaves:
        return [tree] * n
    columns = zip(*(leaf[:n].unbind() if isinstance(leaf, Tensor) else leaf for leaf in leaves), strict=True)
    return [tree_unflatten(row, spec) for row in columns]
