"""Redistribution before aggregation: m copies of the model walk from client to client, then they are averaged (RADFed).

A round is one redistribution: every walking model is trained by one client of a fresh cohort. After S of them the walk
ends and the models are merged into the global one. So rounds count local training, as they do in FedAvg: the same
number of rounds costs the same communication and the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from motley.core.errors import InputError
from motley.core.ranges import Count
from motley.core.tasks import Update, Weights
from motley.core.types import Round, Tree
from motley.protocol.federation import PROTOCOLS, Federation

Unequal = Literal["balanced", "fewer", "stop"]
Show = Literal["average", "global"]


@dataclass(frozen=True)
class Walker:
    """A model on its way."""

    model: Weights  # as it went over the wire last
    path: Update | None = None  # all its hops as one change of the global model; None: nobody has trained it yet
    hops: int = 0

    def hop(self, update: Update, origin: Weights) -> Walker:
        """The model after one more client: changes, samples, steps, epochs, seconds add up; the rest is the last's."""
        before = self.path
        path = update._replace(start=origin)
        if before is not None:
            path = path._replace(
                delta=before.delta + update.delta,
                trained=torch.maximum(before.trained, update.trained),
                n=before.n + update.n,
                steps=before.steps + update.steps,
                epochs=before.epochs + update.epochs,
                duration=before.duration + update.duration,
                width=None if update.width is None or before.width is None else max(update.width, before.width),
            )
        return Walker(update.model, path, self.hops + 1)

    def to_tree(self) -> Tree:
        if self.path is None:
            return None
        return {"model": self.model.value, "path": self.path.to_tree(), "hops": self.hops}

    @classmethod
    def from_tree(cls, tree: Tree, origin: Weights) -> Walker:
        if tree is None:
            return cls(origin)
        return cls(Weights(tree["model"]), Update.from_tree(tree["path"], origin), tree["hops"])


@dataclass(frozen=True)
class Walk:
    """The models that walk, and for how many redistributions they have."""

    walkers: tuple[Walker, ...]
    age: int = 0

    def paths(self, rnd: Round) -> list[Update]:
        """What has been learned, as updates of the global model; a model nobody has trained brings nothing."""
        return [w.path._replace(round=rnd.number) for w in self.walkers if w.path is not None]

    def to_tree(self) -> Tree:
        return {"age": self.age, "walkers": [walker.to_tree() for walker in self.walkers]}

    @classmethod
    def from_tree(cls, tree: Tree, origin: Weights) -> Walk:
        return cls(tuple(Walker.from_tree(one, origin) for one in tree["walkers"]), tree["age"])


@PROTOCOLS.add(hidden=("fed",), punctual=True)
async def redistribute(fed: Federation, S: Count = 10, unequal: Unequal = "balanced", show: Show = "average") -> None:
    """Models walk over S fresh cohorts before they are averaged (RADFed, Algorithm 1); a round is one redistribution.

    unequal: what happens when fewer clients are active than models walk: ``balanced`` (models with the fewest hops go
    first, so that hop counts differ by at most one unless updates get lost), ``fewer`` (surplus models are dropped for
    the rest of the walk) or ``stop`` (an error). show: what is evaluated between two averages: the ``average`` that
    merging now would give, or the last ``global``. A client lost on the way leaves its model as it was: the next cohort
    takes it up.
    """
    async for rnd in fed.rounds():
        walk = _walk(fed, rnd)
        cohort = fed.select(rnd._replace(cohort=len(walk.walkers)))
        walk, going = _deal(walk, len(cohort), rnd, unequal)
        tasks = fed.dispatch(rnd, cohort, [walk.walkers[i].model for i in going])
        arrived = fed.observe(rnd, await fed.gather(tasks, rnd.deadline))
        walk = _moved(walk, dict(zip(cohort, going, strict=True)), arrived, fed.weights)
        fed.note(walk_age=walk.age, walking=len(walk.walkers), hops=[walker.hops for walker in walk.walkers])
        if walk.age >= S:
            fed.aggregate(rnd, walk.paths(rnd), observed=True)
            fed.memory, fed.shown = {}, None
        else:
            fed.memory = {"walk": walk.to_tree()}
            learned = walk.paths(rnd)
            fed.shown = fed.preview(rnd, learned) if learned and show == "average" else None


def _walk(fed: Federation, rnd: Round) -> Walk:
    """The walk that is under way, or a new one with m copies of the global model."""
    if "walk" in fed.memory:
        return Walk.from_tree(fed.memory["walk"], fed.weights)
    if rnd.cohort > fed.n_clients:
        raise InputError(
            f"{rnd.cohort} models cannot walk over {fed.n_clients} clients, each needs one of its own; "
            f"set cohort={fed.n_clients} or less."
        )
    return Walk(tuple(Walker(fed.weights) for _ in range(rnd.cohort)))


def _deal(walk: Walk, active: int, rnd: Round, unequal: Unequal) -> tuple[Walk, list[int]]:
    """Which models go to the ``active`` members of the cohort, in their order.

    From the second hop on, who gets which model is drawn, whatever order the clients were chosen in.
    """
    wanted = len(walk.walkers)
    if active < wanted and unequal == "stop":
        raise InputError(
            f"{wanted} models walk, but only {active} clients are active in round {rnd.number}; use a smaller cohort, "
            "or options.unequal=balanced or fewer."
        )
    order = list(range(wanted))
    if walk.age:
        order = rnd.key.fold("redistribute").generator().permutation(wanted).tolist()
    if active >= wanted:
        return walk, order
    if unequal == "fewer" and active:
        stay = sorted(sorted(order, key=lambda i: -walk.walkers[i].hops)[:active])
        order = [stay.index(i) for i in order if i in stay]
        return replace(walk, walkers=tuple(walk.walkers[i] for i in stay)), order
    return walk, sorted(order, key=lambda i: walk.walkers[i].hops)[:active]


def _moved(walk: Walk, going: Mapping[int, int], arrived: Sequence[Update], origin: Weights) -> Walk:
    """The walk after one redistribution; ``going`` says which model each client trained."""
    walkers = list(walk.walkers)
    for update in arrived:
        i = going[update.client]
        walkers[i] = walkers[i].hop(update, origin)
    return Walk(tuple(walkers), walk.age + 1)
