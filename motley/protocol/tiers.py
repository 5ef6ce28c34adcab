"""Groups of clients of like speed, each in rounds of its own (FedAT)."""

from __future__ import annotations

import itertools

from motley.core.errors import InputError
from motley.core.ranges import Count
from motley.protocol.federation import PROTOCOLS, Federation, Flight
from motley.protocol.late import EMPTY_SECONDS


@PROTOCOLS.add(hidden=("fed",))
async def tiered(fed: Federation, tiers: Count = 5) -> None:
    """Synchronous inside each of ``tiers`` groups of like speed, asynchronous between them (FedAT, Chai et al. 2021).

    Groups come from profiling: equally many clients in each, the fastest first. Whenever a group's cohort is complete,
    it is merged (one round) and the group starts anew.
    """
    if tiers > fed.n_clients:
        raise InputError(
            f"The tiered protocol has {tiers} tiers for {fed.n_clients} clients; give 1 to {fed.n_clients}."
        )
    groups = by_speed(fed.profile, tiers)
    tier_of = {client: m for m, group in enumerate(groups) for client in group}
    async for rnd in fed.rounds():
        while True:
            flying: list[list[Flight]] = [[] for _ in groups]
            for flight in fed.flights:
                flying[tier_of[flight.client]].append(flight)
            for m, group in enumerate(groups):
                if not flying[m]:
                    flying[m] = fed.dispatch(rnd, fed.select(rnd, among=group))
            ready = [flights for flights in flying if flights and all(flight.over() for flight in flights)]
            if ready or not any(flying):
                break
            await fed.news()
        arrived = fed.take(ready[0]) if ready else []
        if ready:
            fed.give_up([flight for flight in ready[0] if not flight.done()])
        else:
            await fed.sleep(EMPTY_SECONDS)
        fed.aggregate(rnd, arrived)


def by_speed(seconds: list[float], tiers: int) -> list[list[int]]:
    """Clients in groups of equal size (the first ones larger by one where it does not come out even), fastest first."""
    order = sorted(range(len(seconds)), key=lambda client: (seconds[client], client))
    size, rest = divmod(len(order), tiers)
    bounds = [m * size + min(m, rest) for m in range(tiers + 1)]
    return [sorted(order[low:high]) for low, high in itertools.pairwise(bounds)]
