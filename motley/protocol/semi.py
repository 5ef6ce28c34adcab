"""Everybody trains all the time, a round takes the first that come (SAFA)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from motley.core.ranges import Count
from motley.protocol.federation import PROTOCOLS, Arrival, Federation
from motley.protocol.late import EMPTY_SECONDS


@PROTOCOLS.add(hidden=("fed",))
async def semi_asynchronous(fed: Federation, lag: Count = 5) -> None:
    """Rounds take the first arrivals of all clients; slow ones work on, up to ``lag`` rounds (SAFA, Wu et al. 2021).

    Every round: clients without a task get the newest model; those that have worked for more than ``lag`` rounds are
    called back and get it too. The round ends when ``cohort`` updates of clients that were not merged in the last round
    have come, or all have, or the deadline has passed. Updates of clients merged in the last round fill the places that
    are left; the others are only observed (they stay in the cache of `cached_models` for the next round).
    """
    async for rnd in fed.rounds():
        fed.give_up([flight for flight in fed.flights if rnd.number - flight.round > lag])
        fed.dispatch(rnd, fed.select(rnd, fed.n_clients))
        until = None if rnd.deadline is None else fed.now + rnd.deadline
        merged_last = set(fed.memory["merged"].tolist()) if "merged" in fed.memory else set()
        came: list[Arrival] = fed.take()
        while _fresh(came, merged_last) < rnd.cohort and fed.flights and (until is None or fed.now < until):
            if all(flight.over() and not flight.done() for flight in fed.flights):
                break  # the rest is held up until later rounds
            await fed.news(until)
            came += fed.take()
        if not came and not fed.flights:
            await fed.sleep(EMPTY_SECONDS)
        picked = sorted(came, key=lambda arrival: arrival.client in merged_last)[: rnd.cohort]  # stable: first come
        chosen = set(map(id, picked))
        fed.aggregate(rnd, picked)
        fed.memory["merged"] = torch.tensor([arrival.client for arrival in picked], dtype=torch.int64)
        fed.observe(rnd, [arrival for arrival in came if id(arrival) not in chosen])


def _fresh(came: Sequence[Arrival], merged_last: set[int]) -> int:
    return sum(arrival.client not in merged_last for arrival in came)
