"""How updates become one model."""

from __future__ import annotations

import torch
from torch import Tensor

from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.types import Round, Tree, Updates


def layerwise_mean(net: Network, params: Tensor, updates: Updates, weights: Tensor) -> Tensor:
    """``w_l + sum_k p_k delta_kl / sum_k p_k`` over the clients k that trained layer l; others keep their weights.

    params [P], weights [K]. This is the default merge; with all layers trained it is FedAvg's weighted mean.
    """
    share = weights[:, None] * updates.trained  # [K, L]
    total = share.sum(0)
    share = torch.where(total > 0, share / total.clamp_min(torch.finfo(share.dtype).tiny), torch.zeros_like(share))
    if bool((updates.trained == 1).all()):
        return params + share[:, 0] @ updates.delta
    pieces = [
        params[layer.start : layer.stop] + share[:, layer.order] @ updates.delta[:, layer.start : layer.stop]
        for layer in net.layout.layers
    ]
    return torch.cat(pieces)


@part("aggregate", example={})
def plain_mean() -> Part:
    """Counts every update alike, however many samples its client has."""

    def weigh(s: Tree, rnd: Round, updates: Updates) -> Tensor:
        return 1.0 / updates.n

    return Part(weigh=weigh)
