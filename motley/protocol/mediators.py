"""Models that walk from client to client within groups, side by side, and are then averaged (GANDALF, Astraea).

Each group has a mediator, which decides who is next. It goes by a table of how often each client has completed a task,
so that everybody contributes about as much, whoever fails now and then. Models pass from client to client; the mediator
only hears that a task is done. If the client that holds the newest model is gone, the one before it hands on its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from motley.core.errors import InputError
from motley.core.ranges import Count, NotNegative, Positive
from motley.core.tasks import Update, Weights
from motley.core.types import Round
from motley.protocol.federation import PROTOCOLS, Federation
from motley.server.grouping import Groups, alike, at_random, towards_uniform
from motley.server.tiers import by_speed

Rule = Literal["kl", "kmeans", "random", "by_speed"]
Through = Literal["clients", "server"]
Order = Literal["fewest", "fixed"]
Counts = NDArray[np.float64]


@PROTOCOLS.add(hidden=("fed",), punctual=True)
async def mediators(
    fed: Federation,
    groups: Count = 5,
    by: Rule = "kl",
    passes: Count = 1,
    through: Through = "clients",
    most: Count | None = None,
    pause: NotNegative = 0.0,
    patience: Positive | None = None,
    histogram_noise: NotNegative = 0.0,
    order: Order = "fewest",
) -> None:
    """Models walk within groups of clients, side by side, before they are averaged (GANDALF, Algorithm 3; Astraea).

    by: who is in a group together: ``kl`` (classes together as even as can be, Algorithm 4), ``kmeans`` (alike,
    Algorithm 2), ``random`` or ``by_speed``. passes: how often a model visits each available client of its group
    (E_m). through: models pass between ``clients`` without the server seeing them, or through the ``server``. most: how
    often a client may be chosen in a round (``passes``, unless told). pause: seconds between two tasks of a client.
    patience: seconds a mediator waits for a client (T_R); none: as long as it takes. histogram_noise: deviation of the
    Gaussian noise on each count of the histograms that clients tell. order: next is who has completed the ``fewest``
    tasks, or all in a ``fixed`` sequence, whoever failed before.
    """
    made = teams(fed, groups, by, histogram_noise)
    async for rnd in fed.rounds():
        rules = Rules(passes, most or passes, pause, patience or rnd.deadline, through == "clients", order == "fewest")
        table = Table.of(fed)
        walks = await asyncio.gather(*(walk(fed, rnd, team, rules, table, fed.weights) for team in made))
        fed.aggregate(rnd, [one.together() for one in walks if one is not None], observed=True)
        table.written(fed)


def told_counts(fed: Federation, noise: float = 0.0) -> Counts | None:
    """Samples per class as clients tell them [N, C]: plus N(0, noise^2) on each count, at least 0; None: they do not.

    The same whenever it is asked for.
    """
    if fed.labels is None:
        return None
    counts: Counts = fed.labels.numpy().astype(np.float64)
    if noise:
        keys = [fed.key.fold("histogram", client) for client in fed.clients]
        counts = counts + np.array([key.generator().normal(0.0, noise, counts.shape[1]) for key in keys])
    return counts.clip(min=0)


def teams(fed: Federation, groups: int, by: Rule, noise: float = 0.0) -> Groups:
    """The groups, as ids of clients; the same in every round, and after a resumption."""
    if groups > fed.n_clients:
        raise InputError(f"{groups} groups cannot be made of {fed.n_clients} clients; set options.groups to less.")
    clients, key = fed.clients, fed.key.fold("teams")
    if by == "random":
        places = at_random(len(clients), groups, key)
    elif by == "by_speed":
        places = by_speed(fed.profile, groups)
    else:
        counts = told_counts(fed, noise)
        if counts is None:
            raise InputError(
                f"Grouping by '{by}' needs to know how many samples of each class clients have, and they have not "
                "told; set options.by=random or by_speed."
            )
        places = towards_uniform(counts, groups) if by == "kl" else alike(counts, groups, key)
    return [[clients[place] for place in group] for group in places]


@dataclass(frozen=True)
class Rules:
    """How a mediator walks its model."""

    passes: int
    most: int
    pause: float
    patience: float | None
    unseen: bool  # models pass between clients
    fairly: bool = True  # by completed tasks


@dataclass
class Table:
    """Who did how much: over all rounds, and in this one."""

    completed: Counter[int]
    visits: Counter[int] = field(default_factory=Counter)  # times each client was chosen in this round
    last: dict[int, float] = field(default_factory=dict)  # when it was last chosen, in whatever round
    rollbacks: int = 0

    @classmethod
    def of(cls, fed: Federation) -> Table:
        known = fed.memory.get("walks")
        if known is None:
            return cls(Counter())
        last = zip(fed.clients, known["last"].tolist(), strict=True)
        completed = Counter(dict(zip(fed.clients, known["completed"].tolist(), strict=True)))
        return cls(completed, last={client: moment for client, moment in last if moment >= 0})

    def written(self, fed: Federation) -> None:
        """Tells this round's record, and remembers what the next round must know."""
        fed.note(visits=sum(self.visits.values()), rollbacks=self.rollbacks)
        last = [self.last.get(client, -1.0) for client in fed.clients]
        fed.memory["walks"] = {
            "completed": torch.tensor([self.completed[client] for client in fed.clients]),
            "last": torch.tensor(last, dtype=torch.float64),
        }

    def next_of(self, fed: Federation, rnd: Round, team: Sequence[int], rules: Rules) -> int | None:
        """Who is next: of those who are there and may, the one with the fewest completed tasks, or asked least."""
        here = set(fed.here(rnd))
        able = [client for client in team if client in here and self.visits[client] < rules.most]
        rested = [client for client in able if fed.now >= self.last.get(client, float("-inf")) + rules.pause]
        done = self.completed if rules.fairly else self.visits
        return min(rested, key=lambda client: (done[client], client), default=None)

    def resting(self, fed: Federation, rnd: Round, team: Sequence[int], rules: Rules) -> float | None:
        """When the first of those who may, but must pause, may again; None where there are none."""
        here = set(fed.here(rnd))
        able = [client for client in team if client in here and self.visits[client] < rules.most]
        return min((self.last[client] + rules.pause for client in able if client in self.last), default=None)


class Walk(NamedTuple):
    """How a model came through its group."""

    origin: Weights
    hops: list[Update]  # at least one
    last: Weights

    def together(self) -> Update:
        """All hops as one update: samples, steps, epochs and seconds add up, the rest is the last one's."""
        hops = self.hops
        return hops[-1]._replace(
            start=self.origin,
            delta=self.last.value - self.origin.value,
            trained=torch.stack([hop.trained for hop in hops]).amax(0),
            n=sum(hop.n for hop in hops),
            steps=sum(hop.steps for hop in hops),
            epochs=sum(hop.epochs for hop in hops),
            duration=sum(hop.duration for hop in hops),
            held=None,
        )


async def walk(
    fed: Federation, rnd: Round, team: Sequence[int], rules: Rules, table: Table, origin: Weights
) -> Walk | None:
    """Walks one group's model in a round; None where nobody could train it."""
    trail = [origin]  # models by who holds them, the newest last; the first is the server's own and stays
    hops: list[Update] = []
    while sum(table.visits[client] for client in team) < rules.passes * len(team):
        client = table.next_of(fed, rnd, team, rules)
        if client is None:
            again = table.resting(fed, rnd, team, rules)
            if again is None:
                break
            await fed.sleep(max(0.0, again - fed.now))
            continue
        table.visits[client] += 1
        table.last[client] = fed.now
        (task,) = fed.dispatch(rnd, [client], [trail[-1]], keep=rules.unseen)
        arrived = fed.observe(rnd, await fed.gather([task], rules.patience))
        if arrived:
            table.completed[client] += 1
            trail.append(arrived[0].model)
            hops.append(arrived[0])
        elif len(trail) > 1 and (task.why == "holder" or not fed.reachable(trail[-1])):
            trail.pop()  # the newest model that can still be had
            hops.pop()
            table.rollbacks += 1
            table.visits[client] -= 1  # it was not its fault
    return await _collect(fed, trail, hops, table)


async def _collect(fed: Federation, trail: list[Weights], hops: list[Update], table: Table) -> Walk | None:
    """The newest model that can be had, and the hops that led to it."""
    while hops:
        last = await fed.bring(trail[-1])
        if last is not None:
            return Walk(trail[0], hops, last)
        trail.pop()
        hops.pop()
        table.rollbacks += 1
    return None
