"""A fleet: what the world does to each client. Methods never see it; the clock does.

A fleet is a table of constants per client and, for each (client, round), a fate drawn from keys. Fleets are built by
layers (devices, links, availability, ...), each a pure function from fleet to fleet, so a client can be slow, far,
unreliable and small at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from motley.core.keys import Key


class Fate(NamedTuple):
    """What happens to one client's task in one round."""

    affordable: float = float("inf")  # epochs the device can train before it must stop
    lost: bool = False  # the update never arrives
    delay: float = 0.0  # extra seconds of transmission
    delay_rounds: int = 0  # extra rounds of transmission


Presence = Callable[[Key, int, float, NDArray[np.bool_]], NDArray[np.bool_]]
"""(key, round, now, present so far [N]) -> present [N]"""
Fortune = Callable[[Key, int, int, Fate], Fate]
"""(key, client, round, fate so far) -> fate"""


@dataclass(frozen=True)
class Fleet:
    """Constants per client, and the layers that decide presence and fate."""

    flops: NDArray[np.float64]  # [N] floating-point operations per second
    down: NDArray[np.float64]  # [N] bytes per second towards the client
    up: NDArray[np.float64]  # [N] bytes per second from the client
    limited: NDArray[np.bool_]  # [N] computing-limited devices
    key: Key
    presence: tuple[Presence, ...] = field(default=())
    fortune: tuple[Fortune, ...] = field(default=())
    layers: tuple[str, ...] = ("ideal",)  # how it was made, for people

    @classmethod
    def ideal(cls, n_clients: int, key: Key, *, flops: float = 1e10, bandwidth: float = 1e7) -> Fleet:
        """Equal devices (10 GFLOP/s), equal links (10 MB/s), always there, nothing lost."""
        full = np.full
        return cls(
            full(n_clients, flops), full(n_clients, bandwidth), full(n_clients, bandwidth), full(n_clients, False), key
        )

    @property
    def n_clients(self) -> int:
        return len(self.flops)

    def with_(self, **changes: object) -> Fleet:
        return replace(self, **changes)  # type: ignore[arg-type]

    def present(self, round_index: int, now: float) -> NDArray[np.bool_]:
        """Who can be reached at the start of a round: [N]."""
        here = np.ones(self.n_clients, bool)
        for layer in self.presence:
            here = layer(self.key, round_index, now, here)
        return here

    def fate(self, client: int, round_index: int) -> Fate:
        """What will happen to this client's task; the same for every method with the same seed."""
        fate = Fate()
        for layer in self.fortune:
            fate = layer(self.key, client, round_index, fate)
        return fate
