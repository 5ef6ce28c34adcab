"""Redistribution before aggregation: m copies of the model walk from client to client, then they are averaged (RADFed).

A round is one redistribution: every walking model is trained by one client of a fresh cohort. After S of them the walk
ends and the models are merged into the global one. So rounds count local training, as they do in FedAvg: the same
number of rounds costs the same communication and the same time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch

from motley.core.errors import InputError
from motley.core.types import Round, Tree
from motley.protocol.federation import PROTOCOLS, Arrival, Federation, Weights

UNEQUAL = ("balanced", "fewer", "stop")
SHOW = ("average", "global")


@dataclass(frozen=True)
class WalkOptions:
    """How models walk.

    S: redistributions before models are averaged.
    unequal: what happens when fewer clients are active than models walk: ``balanced`` (models with the fewest hops go
        first, so that hop counts differ by at most one unless updates get lost), ``fewer`` (surplus models are dropped
        for the rest of the walk) or ``stop`` (an error).
    show: what is evaluated between two averages: the ``average`` that merging now would give, or the last ``global``.
    """

    S: int = 10
    unequal: str = "balanced"
    show: str = "average"

    def __post_init__(self) -> None:
        if isinstance(self.S, bool) or not isinstance(self.S, int) or self.S < 1:
            raise InputError(f"S, the number of redistributions, is {self.S!r}; it must be a whole number from 1 on.")
        for name, value, allowed in (("unequal", self.unequal, UNEQUAL), ("show", self.show, SHOW)):
            if value not in allowed:
                raise InputError(f"The option {name} of redistribution is {value!r}; it must be {_either(allowed)}.")


def _either(words: Sequence[str]) -> str:
    return ", ".join(f"'{word}'" for word in words[:-1]) + f" or '{words[-1]}'"


@dataclass(frozen=True)
class Walker:
    """A model on its way."""

    model: Weights  # as it went over the wire last
    path: Arrival | None = None  # all its hops as one change of the global model; None: nobody has trained it yet
    hops: int = 0

    def hop(self, arrival: Arrival, origin: Weights) -> Walker:
        """The model after one more client: changes, samples, steps, epochs, seconds add up; the rest is the last's."""
        before = self.path
        path = arrival._replace(start=origin, own={})
        if before is not None:
            path = path._replace(
                delta=before.delta + arrival.delta,
                trained=torch.maximum(before.trained, arrival.trained),
                n=before.n + arrival.n,
                steps=before.steps + arrival.steps,
                epochs=before.epochs + arrival.epochs,
                duration=before.duration + arrival.duration,
                width=None if arrival.width is None or before.width is None else max(arrival.width, before.width),
            )
        return Walker(arrival.model, path, self.hops + 1)

    def to_tree(self) -> Tree:
        if self.path is None:
            return {"model": self.model.value.clone()}
        p = self.path
        width = math.nan if p.width is None else p.width
        numbers = [p.client, p.round, p.n, float(p.loss), p.steps, p.epochs, p.lr, p.duration, width, self.hops]
        return {
            "model": self.model.value,
            "delta": p.delta,
            "trained": p.trained,
            "numbers": torch.tensor(numbers, dtype=torch.float64),
            "extras": p.extras,
        }

    @classmethod
    def from_tree(cls, tree: Tree, origin: Weights) -> Walker:
        if "numbers" not in tree:
            return cls(origin)
        client, number, n, loss, steps, epochs, lr, duration, width, hops = tree["numbers"].tolist()
        told = torch.tensor(loss, dtype=torch.float32, device=tree["delta"].device)
        path = Arrival(
            int(client), int(number), origin, tree["delta"], tree["trained"], tree.get("extras", {}), {},
            n, told, int(steps), epochs, lr, duration, None if math.isnan(width) else width,
        )  # fmt: skip
        return cls(Weights(tree["model"]), path, int(hops))


@dataclass(frozen=True)
class Walk:
    """The models that walk, and for how many redistributions they have."""

    walkers: tuple[Walker, ...]
    age: int = 0

    def paths(self, rnd: Round) -> list[Arrival]:
        """What has been learned, as updates of the global model; a model nobody has trained brings nothing."""
        return [w.path._replace(round=rnd.number) for w in self.walkers if w.path is not None]

    def to_tree(self) -> Tree:
        walkers = {f"{i:06d}": walker.to_tree() for i, walker in enumerate(self.walkers)}
        return {"age": torch.tensor(self.age), "walkers": walkers}

    @classmethod
    def from_tree(cls, tree: Tree, origin: Weights) -> Walk:
        walkers = tuple(Walker.from_tree(tree["walkers"][name], origin) for name in sorted(tree["walkers"]))
        return cls(walkers, int(tree["age"]))


@PROTOCOLS.add(hidden=("fed",), punctual=True, options=tuple(field.name for field in fields(WalkOptions)))
async def redistribute(fed: Federation) -> None:
    """Models walk over S fresh cohorts before they are averaged (RADFed, Algorithm 1); a round is one redistribution.

    A client lost on the way leaves its model as it was: the next cohort takes it up.
    """
    options = WalkOptions(**fed.options)
    async for rnd in fed.rounds():
        walk = _walk(fed, rnd)
        cohort = fed.select(rnd._replace(cohort=len(walk.walkers)))
        walk, going = _deal(walk, len(cohort), rnd, options)
        flights = fed.dispatch(rnd, cohort, [walk.walkers[i].model for i in going])
        arrived = fed.observe(rnd, await fed.gather(flights, rnd.deadline))
        walk = _moved(walk, dict(zip(cohort, going, strict=True)), arrived, fed.weights)
        fed.note(walk_age=walk.age, walking=len(walk.walkers), hops=[walker.hops for walker in walk.walkers])
        if walk.age >= options.S:
            fed.aggregate(rnd, walk.paths(rnd), observed=True)
            fed.memory, fed.shown = {}, None
        else:
            fed.memory = {"walk": walk.to_tree()}
            learned = walk.paths(rnd)
            fed.shown = fed.preview(rnd, learned) if learned and options.show == "average" else None


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


def _deal(walk: Walk, active: int, rnd: Round, options: WalkOptions) -> tuple[Walk, list[int]]:
    """Which models go to the ``active`` members of the cohort, in their order.

    From the second hop on, who gets which model is drawn, whatever order the clients were chosen in.
    """
    wanted = len(walk.walkers)
    if active < wanted and options.unequal == "stop":
        raise InputError(
            f"{wanted} models walk, but only {active} clients are active in round {rnd.number}; use a smaller cohort, "
            "or options.unequal=balanced or fewer."
        )
    order = list(range(wanted))
    if walk.age:
        order = rnd.key.fold("redistribute").generator().permutation(wanted).tolist()
    if active >= wanted:
        return walk, order
    if options.unequal == "fewer" and active:
        stay = sorted(sorted(order, key=lambda i: -walk.walkers[i].hops)[:active])
        order = [stay.index(i) for i in order if i in stay]
        return replace(walk, walkers=tuple(walk.walkers[i] for i in stay)), order
    return walk, sorted(order, key=lambda i: walk.walkers[i].hops)[:active]


def _moved(walk: Walk, going: Mapping[int, int], arrived: Sequence[Arrival], origin: Weights) -> Walk:
    """The walk after one redistribution; ``going`` says which model each client trained."""
    walkers = list(walk.walkers)
    for arrival in arrived:
        i = going[arrival.client]
        walkers[i] = walkers[i].hop(arrival, origin)
    return Walk(tuple(walkers), walk.age + 1)
