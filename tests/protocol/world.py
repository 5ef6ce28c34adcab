"""A small world whose times are chosen by hand: devices and links take no time, so a task takes its delay alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from motley.core.keys import Key
from motley.core.part import Composable, Part, compose
from motley.core.tasks import Event
from motley.core.types import Pool, Round, Tree
from motley.fleet.fleet import Fates, Fleet
from motley.runtime.experiment import Given, prepare
from motley.runtime.launch import Listening, Run
from motley.runtime.recipe import load


@dataclass(frozen=True)
class Chosen:
    """Fates by (client, round): seconds and rounds of delay, losses; anything not named takes the client's seconds."""

    seconds: tuple[float, ...]
    lost: frozenset[tuple[int, int]] = frozenset()
    held: tuple[tuple[int, int, int], ...] = ()  # client, round, rounds of delay
    affordable: tuple[tuple[int, int, float], ...] = field(default=())

    def __call__(self, clients: NDArray[np.int64], round_index: int, fates: Fates) -> Fates:
        held = {(client, number): rounds for client, number, rounds in self.held}
        epochs = {(client, number): amount for client, number, amount in self.affordable}
        return Fates(
            np.array([epochs.get((int(c), round_index), np.inf) for c in clients]),
            np.array([(int(c), round_index) in self.lost for c in clients]),
            np.array([self.seconds[c] for c in clients]),
            np.array([held.get((int(c), round_index), 0) for c in clients]),
        )


def fleet_of(fates: Chosen, speeds: list[float] | None = None) -> Fleet:
    """Devices and links so fast that only the delays count; ``speeds`` still order the clients for profiling."""
    n = len(fates.seconds)
    fleet = Fleet.ideal(n, Key.root(0), flops=1e30, bandwidth=1e30)
    if speeds is not None:
        fleet = fleet.scaled(np.array(speeds), links=False)
    return fleet.meets(fortune=fates)


def _first(s: Tree, rnd: Round, pool: Pool) -> torch.Tensor:
    return pool.ids[: rnd.cohort]


IN_ORDER = Part(name="in_order", seam="select", select=_first)


def run_of(fleet: Fleet, protocol: str, *parts: Composable, listeners: Listening = (), **recipe: Any) -> Run:
    """A run on that fleet with clients chosen in order of their ids."""
    given = {"clients": fleet.n_clients, "model": "mlp(hidden=[8])", "cohort": fleet.n_clients, "lr": 0.1, **recipe}
    options = given.pop("options", {})
    full = load("digits", given)
    method = compose(*parts, IN_ORDER, protocol=protocol, options=options)
    return Run(prepare(full, Given(fleet=fleet, method=method)), None, listeners)


def events_of(run: Run) -> list[Event]:
    """What happens in a run from now on, as it happens."""
    seen: list[Event] = []
    run.fed.ledger.book.events = seen.append
    return seen


def trace(run: Run) -> list[str]:
    """The events as lines: time, what, client, round of the task."""
    seen = events_of(run)
    run.go()
    return [
        f"{e.time:g} {e.what} {e.client} {e.round}" if e.client >= 0 else f"{e.time:g} {e.what} {e.round}" for e in seen
    ]
