"""Links: how far each client is, and what gets late or lost on the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from motley.core.errors import InputError
from motley.core.keys import Key, uniform_each
from motley.fleet.fleet import Fates, Fleet
from motley.fleet.layers import count, layer, number


@layer
def bandwidth(fleet: Fleet, key: Key, up: float | None = None, down: float | None = None, spread: float = 1.0) -> Fleet:
    """Bytes per second up and down; log-uniform within ``spread`` overall, both directions of a client together.

    rate_k = rate * spread^(u_k - 1/2), u_k ~ U[0, 1). A direction that is not given keeps its rate (times the spread).
    """
    share = uniform_each(key, np.arange(fleet.n_clients))
    factor = number("spread", spread, 1.0) ** (share - 0.5)
    new_up = fleet.up if up is None else number("up", up, 0, strict=True)
    new_down = fleet.down if down is None else number("down", down, 0, strict=True)
    return fleet.with_(up=new_up * factor, down=new_down * factor)


@dataclass(frozen=True)
class Delay:
    """Transmissions that take longer, with a probability."""

    key: Key
    probability: float
    seconds: tuple[float, float]
    maximum_rounds: int

    def __call__(self, clients: NDArray[np.int64], round_index: int, fates: Fates) -> Fates:
        key = self.key.fold(round_index)
        late = uniform_each(key.fold("late"), clients) < self.probability
        share = uniform_each(key.fold("how long"), clients)
        least, most = self.seconds
        seconds = least + (most - least) * share
        rounds = 1 + np.floor(share * self.maximum_rounds).astype(np.int64) if self.maximum_rounds else 0
        return fates._replace(
            delay=fates.delay + np.where(late, seconds, 0.0),
            delay_rounds=fates.delay_rounds + np.where(late, rounds, 0),
        )


@layer
def delay(
    fleet: Fleet,
    key: Key,
    probability: float = 1.0,
    seconds: float = 0.0,
    maximum_seconds: float | None = None,
    maximum_rounds: int = 0,
) -> Fleet:
    """With a probability, an update is late: by ``seconds`` (uniform up to ``maximum_seconds``), or by rounds.

    Rounds are uniform in 1..maximum_rounds (AMA-FES: probability 0.3 or 0.7, maximum 5, 10 or 15).
    """
    least = number("seconds", seconds, 0.0)
    most = least if maximum_seconds is None else number("maximum_seconds", maximum_seconds, least)
    rounds = count("maximum_rounds", maximum_rounds, 0)
    if most == 0 and rounds == 0:
        raise InputError("The fleet layer 'delay' needs seconds or maximum_rounds above 0, such as delay(seconds=2).")
    return fleet.meets(fortune=Delay(key, number("probability", probability, 0.0, 1.0), (least, most), rounds))


@dataclass(frozen=True)
class Loss:
    """Updates that never arrive, with a probability."""

    key: Key
    probability: float

    def __call__(self, clients: NDArray[np.int64], round_index: int, fates: Fates) -> Fates:
        lost = uniform_each(self.key.fold(round_index), clients) < self.probability
        return fates._replace(lost=fates.lost | lost)


@layer
def loss(fleet: Fleet, key: Key, probability: float = 0.1) -> Fleet:
    """Each update is lost with a probability."""
    return fleet.meets(fortune=Loss(key, number("probability", probability, 0.0, 1.0)))
