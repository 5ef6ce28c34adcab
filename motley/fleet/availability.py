"""Availability: who can be reached when a round starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from motley.core.errors import InputError
from motley.core.keys import Key, uniform_each
from motley.fleet.fleet import Fates, Fleet
from motley.fleet.layers import count, layer, number, numbers
from motley.fleet.traces import Intervals, read_availability

Mask = NDArray[np.bool_]


def _draw(key: Key, probability: NDArray[np.floating[Any]] | float, here: Mask) -> Mask:
    """Keeps each present client with its probability, and at least one of them (the one that came nearest)."""
    drawn = uniform_each(key, np.arange(len(here)))
    stays = here & (drawn < probability)
    if not stays.any() and here.any():
        distance = drawn / np.maximum(np.asarray(probability, np.float64), 1e-300)
        stays[np.argmin(np.where(here, distance, np.inf))] = True
    return stays


@dataclass(frozen=True, eq=False)
class Chance:
    """Present with a probability (one, or one per client), redrawn every ``rounds`` rounds."""

    key: Key
    probability: float | NDArray[np.float32]
    rounds: int = 1

    def __call__(self, round_index: int, now: float, here: Mask) -> Mask:
        return _draw(self.key.fold((round_index - 1) // self.rounds), self.probability, here)


@dataclass(frozen=True, eq=False)
class Holders:
    """Clients that hold no sample are never there."""

    holds: Mask  # [N]

    def __call__(self, round_index: int, now: float, here: Mask) -> Mask:
        return here & self.holds


@layer
def bernoulli(fleet: Fleet, key: Key, p: float = 0.5) -> Fleet:
    """Each round every client is there with probability p, and at least one is (ReBaFL)."""
    return fleet.meets(presence=Chance(key, number("p", p, 0.0, 1.0)))


@layer
def persistent(fleet: Fleet, key: Key, p: float = 0.5, rounds: int = 5) -> Fleet:
    """As `bernoulli`, but who is there is redrawn only every ``rounds`` rounds (ReBaFL: 2, 5, 10, 20)."""
    return fleet.meets(presence=Chance(key, number("p", p, 0.0, 1.0), count("rounds", rounds, 1)))


@layer
def clustered(
    fleet: Fleet,
    key: Key,
    p: list[float] = [0.5, 0.5, 0.3, 0.3, 0.2],  # noqa: B006  (shown by `motley list`, never changed)
    rounds: int = 1,
) -> Fleet:
    """Each cluster of clients has its own probability to be there; the clusters come from the partition (ReBaFL)."""
    chances = numbers("p", p, 0.0, 1.0)
    if fleet.clusters is None:
        raise InputError(
            "The fleet layer 'clustered' needs to know each client's cluster, but this partition makes none; "
            "choose a partition with clusters, or use bernoulli(p=0.5)."
        )
    found = int(fleet.clusters.max()) + 1
    if found > len(chances):
        raise InputError(
            f"The fleet layer 'clustered' got {len(chances)} probabilities for {found} clusters; give p one for each."
        )
    return fleet.meets(presence=Chance(key, chances[fleet.clusters].astype(np.float32), count("rounds", rounds, 1)))


@dataclass(frozen=True, eq=False)
class Diurnal:
    """A probability that rises and falls once a day, at each client's own hour."""

    key: Key
    low: float
    high: float
    period: float
    slot: float
    phase: NDArray[np.float32]  # [N] shift of each client, in days

    def __call__(self, round_index: int, now: float, here: Mask) -> Mask:
        wave = 0.5 + 0.5 * np.cos(2.0 * np.pi * (now / self.period - self.phase))
        return _draw(self.key.fold(int(now // self.slot)), self.low + (self.high - self.low) * wave, here)


@layer
def diurnal(
    fleet: Fleet,
    key: Key,
    low: float = 0.1,
    high: float = 0.9,
    period: float = 86400.0,
    spread: float = 1.0,
    slot: float = 600.0,
) -> Fleet:
    """Day and night: the probability to be there swings between ``low`` and ``high`` once per ``period`` seconds.

    p_k(t) = low + (high - low) * (1 + cos(2 pi (t/period - phase_k))) / 2, phase_k ~ U[0, spread): spread 0 is one time
    zone, 1 the whole world. Who is there is redrawn every ``slot`` seconds of the clock.
    """
    least = number("low", low, 0.0, 1.0)
    phase = uniform_each(key.fold("phase"), np.arange(fleet.n_clients)) * number("spread", spread, 0.0, 1.0)
    day = Diurnal(
        key,
        least,
        number("high", high, least, 1.0),
        number("period", period, 0, strict=True),
        number("slot", slot, 0, strict=True),
        phase.astype(np.float32),
    )
    return fleet.meets(presence=day)


@dataclass(frozen=True, eq=False)
class Trace:
    """Clients that are there in recorded intervals; recordings repeat."""

    intervals: Intervals

    def __call__(self, round_index: int, now: float, here: Mask) -> Mask:
        active = self.intervals.active(now)
        return here & active[np.arange(len(here)) % len(active)]


@layer
def availability_trace(fleet: Fleet, key: Key, path: str) -> Fleet:
    """Recorded availability: JSON or CSV with ``active``, ``inactive`` and ``finish_time`` in seconds, as FedScale.

    A client is there from active[j] to inactive[j] of its recording, which repeats after finish_time. Client i takes
    recording i, from the first again when there are fewer. There may be moments when nobody is there.
    """
    return fleet.meets(presence=Trace(read_availability(path)))


@dataclass(frozen=True)
class Crash:
    """Clients that break down during a round, lose its work, and come back later."""

    key: Key
    probability: float
    rounds: int

    def during(self, clients: NDArray[np.int64], round_index: int) -> Mask:
        return uniform_each(self.key.fold(round_index), clients) < self.probability

    def present(self, round_index: int, now: float, here: Mask) -> Mask:
        ids, up = np.arange(len(here)), here.copy()
        for earlier in range(max(1, round_index - self.rounds), round_index):
            up &= ~self.during(ids, earlier)
        return up

    def fate(self, clients: NDArray[np.int64], round_index: int, fates: Fates) -> Fates:
        return fates._replace(lost=fates.lost | self.during(clients, round_index))


@layer
def crash(fleet: Fleet, key: Key, probability: float = 0.05, rounds: int = 3) -> Fleet:
    """Each round every device crashes with a probability: that round's work is lost, and it is away ``rounds`` rounds.

    A device that draws another crash while away starts its absence anew, so (1 - probability)^rounds are there on
    average.
    """
    event = Crash(key, number("probability", probability, 0.0, 1.0), count("rounds", rounds, 0))
    return fleet.meets(presence=event.present, fortune=event.fate)
