"""Tiers: groups of clients of like speed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor


def by_speed(seconds: Sequence[float], tiers: int) -> list[list[int]]:
    """Clients in groups of equal size (the first ones larger by one where it does not come out even), fastest first."""
    order = sorted(range(len(seconds)), key=lambda client: (seconds[client], client))
    size, rest = divmod(len(order), tiers)
    bounds = [m * size + min(m, rest) for m in range(tiers + 1)]
    return [sorted(order[low:high]) for low, high in itertools.pairwise(bounds)]


def tier_of(seconds: Sequence[float], tiers: int) -> Tensor:
    """The group of each client: int64 [N]."""
    found = torch.empty(len(seconds), dtype=torch.int64)
    for m, group in enumerate(by_speed(seconds, tiers)):
        found[group] = m
    return found
