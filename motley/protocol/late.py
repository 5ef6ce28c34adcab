"""Rounds that end on time: what arrives later joins the round in which it arrives."""

from __future__ import annotations

from collections.abc import Sequence

from motley.core.ranges import NotNegative, Positive
from motley.core.tasks import Update
from motley.core.types import Round
from motley.protocol.federation import PROTOCOLS, Federation, Task


@PROTOCOLS.add(hidden=("fed",))
async def late(
    fed: Federation,
    round_seconds: Positive | None = None,
    maximum_staleness: NotNegative = float("inf"),
    reselect: bool = True,
) -> None:
    """Rounds end on time; updates that come later join the round in which they arrive (asynchronous AMA).

    A round ends when every update of its cohort that will come in this round has come, and at the latest at the
    deadline; with ``round_seconds`` it lasts exactly so long. Updates older than ``maximum_staleness`` rounds are
    thrown away (0: every late one). ``reselect``: a client whose update is held up on its way may be chosen again.
    """
    async for rnd in fed.rounds():
        tasks = fed.dispatch(rnd, fed.select(rnd, waiting=reselect))
        if round_seconds is not None:
            await fed.sleep(round_seconds)
        elif tasks:
            await settled(fed, tasks, rnd.deadline)
        else:
            await fed.nobody()
        fed.aggregate(rnd, young(fed, rnd, fed.take(), maximum_staleness))


async def settled(fed: Federation, tasks: Sequence[Task], seconds: float | None = None) -> None:
    """Waits until nothing more comes of these tasks in this round, at most so many seconds. Gives nothing up."""
    until = None if seconds is None else fed.now + seconds
    while not all(task.over() for task in tasks) and (until is None or fed.now < until):
        await fed.news(until)


def young(fed: Federation, rnd: Round, updates: Sequence[Update], maximum: float) -> list[Update]:
    """The arrivals of at most so many rounds; the others are counted and thrown away."""
    old = [update for update in updates if rnd.number - update.round > maximum]
    fed.discard(old)
    return [update for update in updates if rnd.number - update.round <= maximum]
