"""A fleet: what the world does to each client. Methods never see it; the clock does.

A fleet is a table of constants per client and, for each (client, round), a fate drawn from keys. Fleets are built by
layers (devices, links, availability, ...), each a pure function from fleet to fleet, so a client can be slow, far,
unreliable and small at once. Everything is vectorised over clients: a million of them cost milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from motley.core.errors import InputError
from motley.core.keys import Key


class Fate(NamedTuple):
    """What happens to one client's task in one round."""

    affordable: float = float("inf")  # epochs the device can train before it must stop
    lost: bool = False  # the update never arrives
    delay: float = 0.0  # extra seconds of transmission
    delay_rounds: int = 0  # extra rounds of transmission


class Fates(NamedTuple):
    """The fates of several clients in one round, one row per client."""

    affordable: NDArray[np.float64]  # [K]
    lost: NDArray[np.bool_]  # [K]
    delay: NDArray[np.float64]  # [K]
    delay_rounds: NDArray[np.int64]  # [K]

    @classmethod
    def kind(cls, n: int) -> Fates:
        """Nothing happens to any of ``n`` clients."""
        return cls(np.full(n, np.inf), np.zeros(n, bool), np.zeros(n), np.zeros(n, np.int64))

    def row(self, i: int) -> Fate:
        """The fate of the i-th client, as plain numbers."""
        return Fate(float(self.affordable[i]), bool(self.lost[i]), float(self.delay[i]), int(self.delay_rounds[i]))


Presence = Callable[[int, float, NDArray[np.bool_]], NDArray[np.bool_]]
"""(round, now, present so far [N]) -> present [N]"""
Fortune = Callable[[NDArray[np.int64], int, Fates], Fates]
"""(clients [K], round, fates so far) -> fates"""


@dataclass(frozen=True, eq=False)
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
    clusters: NDArray[np.int64] | None = None  # [N] cluster of each client, where the data have them

    def __post_init__(self) -> None:
        columns = {"down": self.down, "up": self.up, "limited": self.limited, "clusters": self.clusters}
        for name, column in columns.items():
            if column is not None and len(column) != len(self.flops):
                raise InputError(
                    f"A fleet of {len(self.flops)} clients needs as many values of '{name}', not {len(column)}."
                )

    @classmethod
    def ideal(cls, n_clients: int, key: Key, *, flops: float = 1e10, bandwidth: float = 1e7) -> Fleet:
        """Equal devices (10 GFLOP/s), equal links (10 MB/s), always there, nothing lost."""
        if n_clients < 1:
            raise InputError(f"A fleet needs at least one client, not {n_clients}.")
        full = np.full
        return cls(
            full(n_clients, flops), full(n_clients, bandwidth), full(n_clients, bandwidth), full(n_clients, False), key
        )

    @property
    def n_clients(self) -> int:
        return len(self.flops)

    def with_(self, **changes: object) -> Fleet:
        return replace(self, **changes)  # type: ignore[arg-type]

    def scaled(self, factor: NDArray[np.float64], *, links: bool) -> Fleet:
        """Devices (and links, if wanted) faster by a factor per client."""
        faster = self.with_(flops=self.flops * factor)
        return faster.with_(down=self.down * factor, up=self.up * factor) if links else faster

    def meets(self, *, presence: Presence | None = None, fortune: Fortune | None = None) -> Fleet:
        """This fleet with one more layer that decides who is there, or what happens to tasks."""
        return self.with_(
            presence=self.presence if presence is None else (*self.presence, presence),
            fortune=self.fortune if fortune is None else (*self.fortune, fortune),
        )

    def present(self, round_index: int, now: float) -> NDArray[np.bool_]:
        """Who can be reached at the start of a round (counted from 1), ``now`` seconds after the start: [N]."""
        here = np.ones(self.n_clients, bool)
        for layer in self.presence:
            here = layer(round_index, now, here)
        return here

    def fates(self, clients: ArrayLike, round_index: int) -> Fates:
        """What will happen to these clients' tasks; the same for every method with the same seed."""
        ids = np.asarray(clients, np.int64)
        fates = Fates.kind(len(ids))
        for layer in self.fortune:
            fates = layer(ids, round_index, fates)
        return fates

    def fate(self, client: int, round_index: int) -> Fate:
        """`fates` of one client."""
        return self.fates([client], round_index).row(0)
