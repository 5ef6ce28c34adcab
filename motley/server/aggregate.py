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
    narrow = updates.width is not None and bool((updates.width < 1).any())
    whole = bool((updates.trained == 1).all()) if updates.whole is None else updates.whole
    if whole and not narrow:
        return params + _shares(weights) @ updates.delta
    share = weights[:, None] * updates.trained  # [K, L]
    if narrow:
        return _parameterwise(net, params, updates, net.layout.expand(share))
    share = _shares(share)
    pieces = [
        params[layer.start : layer.stop] + share[:, layer.order] @ updates.delta[:, layer.start : layer.stop]
        for layer in net.layout.layers
    ]
    return torch.cat(pieces)


def _shares(weights: Tensor) -> Tensor:
    """Weights [K, ...] divided by their sum over clients; 0 where that is 0."""
    total = weights.sum(0)
    return torch.where(total > 0, weights / total.clamp_min(torch.finfo(weights.dtype).tiny), 0.0)


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
