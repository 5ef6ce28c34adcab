"""AMA-FES (Li, Mahmoodi, Lam) on synchronous rounds, and its baselines."""

from __future__ import annotations

from motley.client.trainable import classifier_only_when_limited, drop_limited
from motley.core.part import Method, compose
from motley.core.ranges import NotNegative, Share
from motley.methods.baselines import ama, fedprox
from motley.methods.named import METHODS
from motley.server.merge import whole_model_mean
from motley.server.workload import less_work_when_limited


@METHODS.add()
def fes(whole: bool = True) -> Method:
    """Feature-extractor sharing: computing-limited clients train the classifier alone.

    ``whole``: the untouched extractor of a limited client counts in the mean, as eq. 3 and 5 say; otherwise each layer
    is averaged over those who trained it.
    """
    return compose(classifier_only_when_limited(), *((whole_model_mean(),) if whole else ()), name="fes")


@METHODS.add()
def ama_fes(alpha0: Share = 0.1, eta: NotNegative = 2.5e-3, maximum: Share = 0.95, whole: bool = True) -> Method:
    """Adaptive mixing and feature-extractor sharing (Algorithm 1 without late updates)."""
    return compose(ama(alpha0=alpha0, eta=eta, maximum=maximum), fes(whole=whole), name="ama_fes")


@METHODS.add()
def naive_fl() -> Method:
    """FedAvg that drops the computing-limited clients."""
    return compose(drop_limited(), name="naive_fl")


@METHODS.add()
def fedprox_limited(rho: NotNegative = 0.01, fraction: Share = 0.5) -> Method:
    """FedProx as AMA-FES compares with: ``rho * ||w - w0||^2`` (eq. 4) and less work on computing-limited clients.

    Eq. 4 has no factor 1/2, so mu = 2 rho.
    """
    return compose(fedprox(mu=2.0 * rho), less_work_when_limited(fraction=fraction), name="fedprox_limited")
