"""Other ways to merge updates into one model."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from motley.core.part import Part, part
from motley.core.ranges import Share
from motley.core.types import Round, Tree, Updates
from motley.server.aggregate import layerwise_mean


@part("aggregate", silent="it agrees with the default where everybody trains every layer")
def whole_model_mean() -> Part:
    """Averages whole models, with layers a client left untouched counted as it received them (AMA-FES, eq. 3 and 5).

    The default averages each layer over those who trained it; the two agree where everybody trains everything.
    """

    def merge(s: Tree, rnd: Round, params: Tensor, updates: Updates, weights: Tensor) -> Tensor:
        assert rnd.net is not None
        sent = updates.trained.amax(-1, keepdim=True).expand_as(updates.trained)
        return layerwise_mean(rnd.net, params, replace(updates, trained=sent, whole=None), weights)

    return Part(merge=merge)


def effective_steps(steps: Tensor, momentum: float) -> Tensor:
    """``||a||_1`` of local SGD: tau, or with momentum r ``(tau - r (1 - r^tau) / (1 - r)) / (1 - r)``."""
    if momentum == 0.0:
        return steps
    return (steps - momentum * (1.0 - momentum**steps) / (1.0 - momentum)) / (1.0 - momentum)


@part("aggregate")
def normalised_averaging(momentum: Share = 0.0) -> Part:
    """Normalises each change by how far its client could go, then steps by the mean distance (FedNova).

    ``w + tau_eff * sum_k p_k delta_k / ||a_k||_1`` with ``tau_eff = sum_k p_k ||a_k||_1`` and a_k from the number of
    local steps; ``momentum`` must be that of the local optimizer. Per layer over those who trained it. With equally
    many steps everywhere it is the weighted mean.
    """

    def merge(s: Tree, rnd: Round, params: Tensor, updates: Updates, weights: Tensor) -> Tensor:
        assert rnd.net is not None
        a = effective_steps(updates.steps, momentum)
        share = weights[:, None] * updates.trained  # [K, L]
        share = share / share.sum(0).clamp_min(torch.finfo(share.dtype).tiny)
        factor = share * (share * a[:, None]).sum(0) / a[:, None]  # [K, L]
        pieces = [
            params[layer.start : layer.stop] + factor[:, layer.order] @ updates.delta[:, layer.start : layer.stop]
            for layer in rnd.net.layout.layers
        ]
        return torch.cat(pieces)

    return Part(merge=merge)
