"""Fleets of the source papers, by name."""

from __future__ import annotations

from motley.core.keys import Key
from motley.fleet.availability import bernoulli, clustered
from motley.fleet.devices import affordable, limited, uniform_spread
from motley.fleet.fleet import Fleet
from motley.fleet.layers import preset
from motley.fleet.links import delay


@preset
def ama_fes_moderate(fleet: Fleet, key: Key, fraction: float = 0.25, maximum_rounds: int = 5) -> Fleet:
    """AMA-FES, Table I: a fraction p of limited devices (0.25, 0.5, 0.75); 30 % of updates late by 1..max rounds."""
    return _ama_fes(fleet, key, 0.3, fraction, maximum_rounds)


@preset
def ama_fes_severe(fleet: Fleet, key: Key, fraction: float = 0.25, maximum_rounds: int = 5) -> Fleet:
    """AMA-FES, Table I: a fraction p of limited devices (0.25, 0.5, 0.75); 70 % of updates late by 1..max rounds."""
    return _ama_fes(fleet, key, 0.7, fraction, maximum_rounds)


def _ama_fes(fleet: Fleet, key: Key, probability: float, fraction: float, maximum_rounds: int) -> Fleet:
    weak = limited(fleet, key, fraction=fraction)
    return delay(weak, key, probability=probability, maximum_rounds=maximum_rounds)


@preset
def fedsae(fleet: Fleet, key: Key, whole: bool = True) -> Fleet:
    """FedSAE, section III-A: affordable epochs ~ N(mu_k, sigma_k), mu_k in [5, 10), sigma_k in [mu_k/4, mu_k/2).

    Reading: the paper does not say whether a fraction of an epoch counts. Left as drawn (``whole=false``), 98.0 % of
    clients miss 15 epochs, and the rate at 20 epochs is 26 % above that at 10; rounded up to whole epochs (the default)
    these are 96.7 % and 42 %, where the paper reports 96.5 to 97.5 % (Table II) and 41 % (Fig. 1).
    """
    return affordable(fleet, key, low=5.0, high=10.0, whole=whole)


@preset
def freezefl(fleet: Fleet, key: Key) -> Fleet:
    """FreezeFL, section V-A: capabilities uniform, up to six times apart, compute and network in proportion."""
    return uniform_spread(fleet, key, ratio=6.0)


@preset
def rebafl(fleet: Fleet, key: Key, p: float = 0.5) -> Fleet:
    """ReBaFL, Table 1: each round every client is there with probability p = 0.5 (Fig. 3: 0.1, 0.3, 0.5)."""
    return bernoulli(fleet, key, p=p)


@preset
def rebafl_clustered(fleet: Fleet, key: Key) -> Fleet:
    """ReBaFL, section 5.3: five clusters that are there with probability 0.5, 0.5, 0.3, 0.3 and 0.2."""
    return clustered(fleet, key, p=[0.5, 0.5, 0.3, 0.3, 0.2])
