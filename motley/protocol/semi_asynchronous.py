"""Everybody trains all the time, a round takes the first that come (SAFA)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from motley.core.ranges import Count
from motley.core.tasks import Update
from motley.core.types import Round
from motley.protocol.federation import PROTOCOLS, Federation


@PROTOCOLS.add(hidden=("fed",))
async def semi_asynchronous(fed: Federation, lag: Count = 5) -> None:
    """Rounds take the first arrivals of all clients; slow ones work on, up to ``lag`` rounds (SAFA, Wu et al. 2021).

    Every round: clients without a task get the newest model; those that have worked for more than ``lag`` rounds are
    called back and get it too. The round ends when ``cohort`` updates of clients that were not merged in the last round
    have come, or all have, or the deadline has passed. Updates of clients merged in the last round fill the places that
    are left; the others are only observed (they stay in the cache of `cached_models` for the next round).
    """
    async for rnd in fed.rounds():
        fed.give_up([task for task in fed.tasks if rnd.number - task.round > lag])
        fed.dispatch(rnd, fed.select(rnd, fed.n_clients))
        merged_last = set(fed.memory["merged"].tolist()) if "merged" in fed.memory else set()
        came = await _first_come(fed, rnd, merged_last)
        if not came and not fed.tasks:
            await fed.nobody()
        picked, others = _places_filled(came, merged_last, rnd.cohort)
        fed.aggregate(rnd, picked)
        fed.memory["merged"] = torch.tensor([update.client for update in picked], dtype=torch.int64)
        fed.observe(rnd, others)


async def _first_come(fed: Federation, rnd: Round, merged_last: set[int]) -> list[Update]:
    """What comes until enough updates are of clients that were not merged in the last round, or nothing more comes."""
    until = None if rnd.deadline is None else fed.now + rnd.deadline
    came = fed.take()
    while _fresh(came, merged_last) < rnd.cohort and fed.tasks and (until is None or fed.now < until):
        if all(task.over() and not task.done() for task in fed.tasks):
            break  # the rest is held up until later rounds
        await fed.news(until)
        came += fed.take()
    return came


def _fresh(came: Sequence[Update], merged_last: set[int]) -> int:
    return sum(update.client not in merged_last for update in came)


def _places_filled(came: Sequence[Update], merged_last: set[int], places: int) -> tuple[list[Update], list[Update]]:
    """Who is merged, clients that were not merged in the last round first, and who is only observed."""
    picked = sorted(came, key=lambda update: update.client in merged_last)[:places]  # stable: first come
    chosen = {update.id for update in picked}
    return picked, [update for update in came if update.id not in chosen]
