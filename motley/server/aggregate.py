"""How updates become one model."""

from __future__ import annotations

import torch
from torch import Tensor

from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.types import Round, Tree, Updates
from motley.nets.width import mask_of


def layerwise_mean(net: Network, params: Tensor, updates: Updates, weights: Tensor) -> Tensor:
    """``w_l + sum_k p_k delta_kl / sum_k p_k`` over the clients k that trained layer l; others keep their weights.

    params [P], weights [K]. This is the default merge; with all layers trained it is FedAvg's weighted mean.
    """
    share = weights[:, None] * updates.trained  # [K, L]
    if updates.width is not None and bool((updates.width < 1).any()):
        return _parameterwise(net, params, updates, net.layout.expand(share))
    total = share.sum(0)
    share = torch.where(total > 0, share / total.clamp_min(torch.finfo(share.dtype).tiny), torch.zeros_like(share))
    if bool((updates.trained == 1).all()):
        return params + share[:, 0] @ updates.delta
    pieces = [
        params[layer.start : layer.stop] + share[:, layer.order] @ updates.delta[:, layer.start : layer.stop]
        for layer in net.layout.layers
    ]
    return torch.cat(pieces)


def _parameterwise(net: Network, params: Tensor, updates: Updates, share: Tensor) -> Tensor:
    """The same for each parameter, over the clients whose narrow network has it (HeteroFL, eq. 1). share [K, P]."""
    assert updates.width is not None
    share = share * mask_of(net, updates.width)
    total = share.sum(0)
    mean = (share * updates.delta).sum(0) / torch.where(total > 0, total, torch.ones_like(total))
    return params + mean


@part("aggregate", example={})
def plain_mean() -> Part:
    """Counts every update alike, however many samples its client has."""

    def weigh(s: Tree, rnd: Round, updates: Updates) -> Tensor:
        return 1.0 / updates.n

    return Part(weigh=weigh)
