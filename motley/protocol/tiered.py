"""Groups of clients of like speed, each in rounds of its own (FedAT)."""

from __future__ import annotations

from collections.abc import Sequence

from motley.core.errors import InputError
from motley.core.ranges import Count
from motley.core.types import Round
from motley.protocol.federation import PROTOCOLS, Federation, Task
from motley.server.tiers import by_speed


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
    clients = fed.clients
    groups = [[clients[place] for place in group] for group in by_speed(fed.profile, tiers)]
    async for rnd in fed.rounds():
        ready = await _first_complete(fed, rnd, groups)
        arrived = fed.take(ready) if ready else []
        if ready:
            fed.give_up([task for task in ready if not task.done()])
        else:
            await fed.nobody()
        fed.aggregate(rnd, arrived)


async def _first_complete(fed: Federation, rnd: Round, groups: list[list[int]]) -> list[Task]:
    """The tasks of the first group of which nothing more comes; none where nobody is under way."""
    tried: set[int] = set()
    while True:
        under_way = _kept_busy(fed, rnd, groups, tried)
        ready = [tasks for tasks in under_way if tasks and all(task.over() for task in tasks)]
        if ready or not any(under_way):
            return ready[0] if ready else []
        await fed.news()


def _kept_busy(fed: Federation, rnd: Round, groups: list[list[int]], tried: set[int]) -> list[list[Task]]:
    """The tasks of every group; idle groups get new ones, each once in a round: one that fails is not asked again."""
    under_way = _by_group(fed.tasks, groups)
    for m, group in enumerate(groups):
        if not under_way[m] and m not in tried:
            under_way[m] = fed.dispatch(rnd, fed.select(rnd, among=group))
            tried.add(m)
    return under_way


def _by_group(tasks: Sequence[Task], groups: list[list[int]]) -> list[list[Task]]:
    where = {client: m for m, group in enumerate(groups) for client in group}
    found: list[list[Task]] = [[] for _ in groups]
    for task in tasks:
        found[where[task.client]].append(task)
    return found
