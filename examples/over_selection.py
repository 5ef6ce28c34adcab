"""A protocol of one's own: ask more clients than needed, and go on with the first that answer.

    python examples/over_selection.py

A round asks ``1 + surplus`` times the cohort and merges the first ``cohort`` updates; who is slower is given up. It
waits for nobody twice, so that slow and lost clients cost no time, and their work is thrown away.
"""

from __future__ import annotations

import math
from typing import Any

import motley
from motley.extend import PROTOCOLS, Federation, NotNegative


@PROTOCOLS.add(hidden=("fed",), punctual=True)
async def over_selection(fed: Federation, surplus: NotNegative = 0.5) -> None:
    """Asks ``1 + surplus`` times the cohort and merges the first that come."""
    async for rnd in fed.rounds():
        asked = fed.select(rnd, math.ceil((1.0 + surplus) * rnd.cohort))
        tasks = fed.dispatch(rnd, asked)
        if not tasks:
            await fed.nobody()
        arrived = await fed.arrivals(at_least=min(rnd.cohort, len(tasks)))
        fed.give_up(tasks)
        fed.note(thrown_away=len(asked) - len(arrived))
        fed.aggregate(rnd, arrived)


def compare(rounds: int = 30) -> dict[str, motley.Result]:
    """The same run with and without the surplus, on devices up to sixteen times apart."""
    fleet = "uniform_spread(ratio=16)+loss(probability=0.1)"
    settings: dict[str, Any] = {"method": "fedavg", "fleet": fleet, "rounds": rounds, "cohort": 5, "seed": 1}
    return {
        "waits for all": motley.run("digits", **settings),
        "takes the first": motley.run("digits", protocol="over_selection", **settings),
    }


if __name__ == "__main__":
    for name, result in compare().items():
        told = f"accuracy {result.accuracy:.3f} after {result.summary['virtual_time']:.3f} virtual seconds"
        print(f"{name:<16} {told}, {result.summary['bytes_up'] / 1e6:.1f} MB up")
