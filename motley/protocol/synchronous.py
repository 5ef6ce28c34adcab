"""The plain round: choose clients, let them train, merge what came back."""

from __future__ import annotations

from motley.protocol.federation import PROTOCOLS, Federation


@PROTOCOLS.add(hidden=("fed",), punctual=True, options=())
async def synchronous(fed: Federation) -> None:
    """Every round waits for its whole cohort, or until the deadline; late updates are given up."""
    async for rnd in fed.rounds():
        cohort = fed.select(rnd)
        tasks = fed.dispatch(rnd, cohort)
        arrived = await fed.gather(tasks, rnd.deadline)
        fed.aggregate(rnd, arrived)
