"""Merges that a few clients cannot pull away: trimmed mean and median, parameter by parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.ranges import Within
from motley.core.types import Round, Tree, Updates
from motley.server.order_statistics import median as median_of
from motley.server.order_statistics import trimmed_mean as trimmed_mean_of

UnderHalf = Annotated[float, Within(0.0, 0.499)]
WHOLE = "clients of unequal widths do not have the same parameters, so there are no ranks among them"


@part("aggregate", example={"share": 0.25})
def trimmed_mean(share: UnderHalf = 0.1) -> Part:
    """Mean without the largest and the smallest ``share`` of the values of each parameter (Yin et al. 2018).

    Of n clients ``floor(share n)`` values are left out on each side; with share 0 it is the plain mean. Clients count
    alike, whatever their samples, but for those with weight 0, which do not count at all. Each layer is merged over
    those who trained it.
    """

    def middle(rows: Tensor) -> Tensor:
        return trimmed_mean_of(rows, int(share * len(rows) + 1e-9))

    return _robust(middle)


@part("aggregate", example={})
def median() -> Part:
    """Median of the values of each parameter; of an even number the mean of the two in the middle (Yin et al. 2018).

    Clients count alike, whatever their samples, but for those with weight 0, which do not count at all. Each layer is
    merged over those who trained it.
    """
    return _robust(median_of)


def _robust(middle: Callable[[Tensor], Tensor]) -> Part:
    def merge(s: Tree, rnd: Round, params: Tensor, updates: Updates, weights: Tensor) -> Tensor:
        assert rnd.net is not None
        return params + middle_change(rnd.net, updates, weights, middle)

    return Part(merge=merge, refuses=dict.fromkeys(("narrow_networks", "ordered_dropout"), WHOLE))


def middle_change(net: Network, updates: Updates, weights: Tensor, middle: Callable[[Tensor], Tensor]) -> Tensor:
    """``middle`` of the changes of each layer over those who trained it and count; 0 where there is nobody."""
    counted = (updates.trained > 0) & (weights > 0)[:, None]  # [K, L]
    if bool(counted.all()):
        return middle(updates.delta)
    change = torch.zeros_like(updates.delta[0])
    for layer in net.layout.layers:
        who = counted[:, layer.order]
        if bool(who.any()):
            change[layer.start : layer.stop] = middle(updates.delta[who, layer.start : layer.stop])
    return change
