"""Rounds that end on time: what arrives later joins the round in which it arrives."""

from __future__ import annotations

from collections.abc import Sequence

from motley.core.ranges import NotNegative, Positive
from motley.core.types import Round
from motley.protocol.federation import PROTOCOLS, Arrival, Federation, Flight

EMPTY_SECONDS = 60.0  # how long the server waits before it looks again when nobody can be reached


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
        flights = fed.dispatch(rnd, fed.select(rnd, waiting=reselect))
        if round_seconds is not None:
            await fed.sleep(round_seconds)
        elif flights:
            await settled(fed, flights, rnd.deadline)
        else:
            await fed.sleep(EMPTY_SECONDS)
        fed.aggregate(rnd, young(fed, rnd, fed.take(), maximum_staleness))


async def settled(fed: Federation, flights: Sequence[Flight], seconds: float | None = None) -> None:
    """Waits until nothing more comes of these flights in this round, at most so many seconds. Gives nothing up."""
    until = None if seconds is None else fed.now + seconds
    while not all(flight.over() for flight in flights) and (until is None or fed.now < until):
        await fed.news(until)


def young(fed: Federation, rnd: Round, arrivals: Sequence[Arrival], maximum: float) -> list[Arrival]:
    """The arrivals of at most so many rounds; the others are counted and thrown away."""
    old = [arrival for arrival in arrivals if rnd.number - arrival.round > maximum]
    fed.discard(old)
    return [arrival for arrival in arrivals if rnd.number - arrival.round <= maximum]
