"""No rounds to wait for: a new task goes out as soon as one comes back."""

from __future__ import annotations

from motley.core.ranges import Count, NotNegative
from motley.core.tasks import Update
from motley.protocol.federation import PROTOCOLS, Federation
from motley.protocol.late import young


@PROTOCOLS.add(hidden=("fed",))
async def asynchronous(
    fed: Federation,
    concurrency: Count | None = None,
    buffer: Count = 1,
    maximum_staleness: NotNegative = float("inf"),
) -> None:
    """Keeps ``concurrency`` clients (default: the cohort) at work and merges after every ``buffer`` arrivals.

    A buffer of 1 is FedAsync, of K FedBuff. A round is one merging, so that an update's age is the number of mergings
    since its client received the model. Updates older than ``maximum_staleness`` are thrown away. No client gets two
    tasks between two mergings; if all have had one, the merging happens with what is there.
    """
    async for rnd in fed.rounds():
        kept: list[Update] = []
        served: set[int] = set()
        width = concurrency or rnd.cohort
        while len(kept) < buffer:
            chosen = fed.select(rnd, max(0, width - len(fed.tasks)), without=served)
            fed.dispatch(rnd, chosen)
            served.update(chosen)
            arrived = fed.take(at_most=buffer - len(kept))
            kept += young(fed, rnd, arrived, maximum_staleness)
            if not arrived:
                if all(task.over() for task in fed.tasks):
                    break  # nobody is at work; what is held back comes in a later round
                await fed.news()
        if not kept:
            await fed.nobody()
        fed.aggregate(rnd, kept)
