"""What a round counts, and updates stacked as hooks see them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from motley.core.errors import HookError
from motley.core.stacking import sent, stack_rows, stack_trees
from motley.core.tasks import Update
from motley.core.types import Round, Updates


@dataclass
class Tally:
    """What happened since the last record."""

    participants: list[int] = field(default_factory=list)
    arrived: int = 0
    lost: int = 0
    late: int = 0
    concluded: int = 0  # tasks that ended: arrived, lost or given up
    stragglers: int = 0  # of these, who sent less than was asked for
    dropouts: int = 0  # of these, who sent nothing
    merged: int = 0  # updates that were merged or handed on
    stale: list[int] = field(default_factory=list)  # ages of aggregated updates, where they can be old
    bytes_down: int = 0
    bytes_up: int = 0
    losses: list[tuple[Tensor, float]] = field(default_factory=list)  # training loss and samples of each arrival
    notes: dict[str, Any] = field(default_factory=dict)  # what the protocol or a measurement adds to the record

    def train_loss(self) -> float | None:
        """The mean over samples, without losses that are not finite; waits for the device that computes them."""
        values = stack_rows([loss for loss, _ in self.losses]).tolist() if self.losses else []
        found = [(value, n) for value, (_, n) in zip(values, self.losses, strict=True) if math.isfinite(value)]
        samples = sum(n for _, n in found)
        return sum(value * n for value, n in found) / samples if samples else None

    def add(self, other: Tally) -> None:
        """Counts what another federation on the same clock has counted; its notes are its own."""
        for one in fields(self):
            if one.name != "notes":
                setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


def _starts(updates: Sequence[Update]) -> Tensor:
    """What each one started from: [K, P]; without a copy where that is the same for all."""
    first = updates[0].start
    if all(update.start.same(first) for update in updates):
        return first.value.expand(len(updates), -1)
    return torch.stack([update.start.value for update in updates])


def _numbers(rnd: Round, updates: Sequence[Update], device: torch.device) -> Tensor:
    """Samples, steps, epochs, learning rate, duration, width and age of each one, sent at once: [7, K]."""
    rows = [(u.n, u.steps, u.epochs, u.lr, u.duration, u.width or 0.0, rnd.number - u.round) for u in updates]
    return sent(torch.tensor(rows, dtype=torch.float32).T.contiguous(), device)


def _extras(updates: Sequence[Update]) -> dict[str, Any]:
    """What parts add to updates, part by part."""
    return {name: stack_trees([update.extras[name] for update in updates]) for name in updates[0].extras}


class Unseen:
    """Stands for models that pass between clients: whoever looks at them is told that the server cannot."""

    def __getattr__(self, name: str) -> Any:
        raise HookError(
            "A part looks at models that clients hand to each other, which the server does not see; let them pass "
            "through the server (options.through=server), or leave the part out."
        )

    @classmethod
    def __torch_function__(cls, *given: Any, **more: Any) -> Any:
        return cls().shape


def _models(updates: Sequence[Update]) -> tuple[Any, Any]:
    """The models that clients started from, and how they changed them."""
    return _starts(updates), stack_rows([update.delta for update in updates])


def _trained(updates: Sequence[Update], device: torch.device) -> tuple[Tensor, bool | None]:
    """Which layers were trained, and whether all were, if that can be told without waiting for a GPU."""
    trained = torch.stack([update.trained for update in updates])
    return (trained, None) if trained.is_cuda else (sent(trained, device), bool((trained == 1).all()))


def stacked(rnd: Round, updates: Sequence[Update]) -> Updates:
    """Updates as hooks see them: stacked, in their order."""
    seen = all(update.held is None for update in updates)
    device = updates[0].start.value.device if seen else updates[0].loss.device
    ids, number = sent(torch.tensor([[u.client for u in updates], [u.round for u in updates]]), device)
    n, steps, epochs, lr, duration, width, age = _numbers(rnd, updates, device)
    trained, whole = _trained(updates, device)
    unseen: Any = Unseen()
    start, delta = _models(updates) if seen else (unseen, unseen)
    return Updates(
        ids=ids,
        round=number,
        age=age,
        start=start,
        delta=delta,
        trained=trained,
        n=n,
        loss=stack_rows([update.loss for update in updates]).to(device),
        steps=steps,
        epochs=epochs,
        lr=lr,
        duration=duration,
        extras=_extras(updates),
        width=None if updates[0].width is None else width,
        whole=whole,
    )
