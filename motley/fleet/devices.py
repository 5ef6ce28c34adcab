"""Devices: how fast each client computes, and how much it can afford."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from motley.core.errors import InputError
from motley.core.keys import Key, uniform_each
from motley.fleet.fleet import Fates, Fleet
from motley.fleet.layers import layer, number, numbers
from motley.fleet.traces import read_capacity


@layer
def ideal(fleet: Fleet, key: Key, flops: float = 1e10, bandwidth: float = 1e7) -> Fleet:
    """Equal devices (FLOP/s) and equal links (bytes/s)."""
    n = fleet.n_clients
    rate = np.full(n, number("bandwidth", bandwidth, 0, strict=True))
    return fleet.with_(flops=np.full(n, number("flops", flops, 0, strict=True)), down=rate, up=rate.copy())


@layer
def speed_classes(
    fleet: Fleet,
    key: Key,
    shares: list[float] = [0.5, 0.3, 0.2],  # noqa: B006  (shown by `motley list`, never changed)
    speeds: list[float] = [1.0, 0.5, 0.1],  # noqa: B006
    links: bool = False,
) -> Fleet:
    """A few kinds of device: exact shares of the clients, each with its speed relative to the fleet's so far."""
    share, speed = numbers("shares", shares, 0.0), numbers("speeds", speeds, 0.0)
    if len(share) != len(speed):
        raise InputError(
            f"The fleet's speed classes have {len(share)} shares but {len(speed)} speeds; give one of each per class."
        )
    if (speed <= 0).any() or share.sum() <= 0:
        raise InputError("The fleet's speed classes need speeds above 0 and shares that are not all 0.")
    kind = np.repeat(np.arange(len(share)), _apportion(share, fleet.n_clients))
    return fleet.scaled(speed[key.generator().permutation(kind)], links=links)


def _apportion(shares: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """``n`` places by shares, exactly (largest remainders)."""
    exact = shares / shares.sum() * n
    places: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    rest = np.argsort(-(exact - places), kind="stable")[: n - places.sum()]
    places[rest] += 1
    return places


@layer
def uniform_spread(fleet: Fleet, key: Key, ratio: float = 6.0, links: bool = True) -> Fleet:
    """Capabilities uniform up to ``ratio`` times apart, compute and network in proportion (FreezeFL).

    capability_k ~ U[1/ratio, 1) of the fleet's so far.
    """
    slowest = 1.0 / number("ratio", ratio, 1.0)
    share = uniform_each(key, np.arange(fleet.n_clients))
    return fleet.scaled(slowest + (1.0 - slowest) * share, links=links)


@layer
def limited(fleet: Fleet, key: Key, fraction: float = 0.25, slowdown: float = 1.0) -> Fleet:
    """A fraction p of computing-limited devices, exact and drawn once (AMA-FES); ``slowdown`` also slows them."""
    n = fleet.n_clients
    chosen = key.generator().permutation(n)[: round(number("fraction", fraction, 0.0, 1.0) * n)]
    mask = fleet.limited.copy()
    mask[chosen] = True
    factor = np.ones(n)
    factor[chosen] = 1.0 / number("slowdown", slowdown, 1.0)
    return fleet.with_(limited=mask).scaled(factor, links=False)


@dataclass(frozen=True)
class Affordable:
    """Epochs each client can train in each round, normal around its own mean."""

    key: Key
    low: float
    high: float
    whole: bool = False  # an epoch that was begun is finished
    spread: tuple[float, float] = (0.25, 0.5)

    def moments(self, clients: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """mu_k and sigma_k of the given clients; computed, never stored."""
        mean = self.low + (self.high - self.low) * uniform_each(self.key.fold("mean"), clients)
        least, most = self.spread
        return mean, mean * (least + (most - least) * uniform_each(self.key.fold("deviation"), clients))

    def __call__(self, clients: NDArray[np.int64], round_index: int, fates: Fates) -> Fates:
        from scipy.special import ndtri

        mean, deviation = self.moments(clients)
        drawn = uniform_each(self.key.fold("round", round_index), clients)
        epochs = np.maximum(mean + deviation * ndtri(drawn + 2.0**-54), 0.0)
        return fates._replace(affordable=np.minimum(fates.affordable, np.ceil(epochs) if self.whole else epochs))


@layer
def affordable(fleet: Fleet, key: Key, low: float = 5.0, high: float = 10.0, whole: bool = False) -> Fleet:
    """Affordable epochs ~ max(0, N(mu_k, sigma_k)) per client and round, from a fixed stream (FedSAE).

    mu_k ~ U[low, high), sigma_k ~ U[mu_k/4, mu_k/2). With ``whole`` they are rounded up: an epoch begun is finished.
    """
    least = number("low", low, 0.0)
    return fleet.meets(fortune=Affordable(key, least, number("high", high, least), bool(whole)))


@layer
def capacity_trace(fleet: Fleet, key: Key, path: str, reference_flops: float = 6e8) -> Fleet:
    """Measured devices: JSON or CSV with ``computation`` (ms per sample) and ``communication`` (kbit/s), as FedScale.

    ``reference_flops`` are the forward FLOPs of the model whose inference was timed (default: MobileNetV2, 3e8
    multiply-adds). Client i takes row i, from the first again when the file has fewer rows.
    """
    milliseconds, kilobits = read_capacity(path)
    flops = number("reference_flops", reference_flops, 0, strict=True) / (milliseconds * 1e-3)
    row = np.arange(fleet.n_clients) % len(flops)
    rate = (kilobits * 125.0)[row]
    return fleet.with_(flops=flops[row], down=rate, up=rate.copy())
