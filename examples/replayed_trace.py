"""A carrier of one's own: who came when is read from a recorded trace instead of being simulated.

    python examples/replayed_trace.py

The trace says of a client in a round how many seconds it took, or that it never answered; who is not in it was away.
Protocols, methods and executors do not notice: a carrier is all that knows time and place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import numpy as np

import motley
from motley import extend as x

Trace = dict[tuple[int, int], float | None]
"""(client, round) -> seconds until its update was there; None: it never came"""


class TraceCarrier(x.Carrier):
    """Delivers what the engine trains at the moments of a trace; nothing is held back, and no old files are left."""

    n_clients = 0
    profile = None  # nobody has measured how long clients take

    def __init__(self, trace: Trace, n_clients: int, executor: x.Executor) -> None:
        self.trace, self.n_clients, self.executor = trace, n_clients, executor
        self.loop = x.SteppedLoop()
        self.under_way: dict[str, tuple[int, x.Kept]] = {}  # client, and what it keeps if its update is accepted
        self.kept: dict[int, x.Kept] = {}

    @property
    def now(self) -> float:
        return self.loop.time()

    def open(self, channel: str, deliver: x.Deliver) -> None:
        self.deliver = deliver

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        self.loop.run(main)

    def present(self, number: int) -> np.ndarray:
        return np.array([(client, number) in self.trace for client in range(self.n_clients)])

    def limited(self, clients: Sequence[int]) -> np.ndarray:
        return np.zeros(len(clients), bool)

    def send(self, assignments: Sequence[x.Assignment]) -> int:
        taken = {a.id: (a.client, self.trace[a.client, a.round]) for a in assignments}
        for name in [name for name, (_, seconds) in taken.items() if seconds is None]:
            self.loop.call_soon(self.deliver, x.Delivery(name, "lost"))
        coming = [a for a in assignments if taken[a.id][1] is not None]
        for order, done in enumerate(self.executor.submit(coming, self.kept.get)):
            if isinstance(done, x.Failed):
                raise done.error
            report, (client, seconds) = done.report, taken[done.report.id]
            self.under_way[report.id] = client, done.own
            arrival = x.Delivery(report.id, "arrived", report, 4 * report.payload.numel())
            self.loop.deliver_at(self.now + (seconds or 0.0), order, self.deliver, arrival)
        return sum(4 * a.start.value.numel() for a in assignments)

    def cancel(self, ids: Sequence[str]) -> None:
        self.acknowledge(ids, accepted=False)

    def acknowledge(self, ids: Sequence[str], accepted: bool) -> None:
        for client, own in [self.under_way.pop(name) for name in ids if name in self.under_way]:
            self.kept |= {client: own} if accepted else {}

    async def nobody(self) -> None:
        await asyncio.sleep(60.0)

    def state(self) -> x.Tree:
        return {"now": self.now, "kept": {str(client): own for client, own in self.kept.items()}}

    def load(self, tree: x.Tree) -> None:
        self.loop = x.SteppedLoop(tree["now"])
        self.kept = {int(client): own for client, own in tree["kept"].items()}

    def close(self) -> None:
        self.executor.close()


def replay(trace: Trace, clients: int = 10, **settings: Any) -> motley.Result:
    """A run in which clients come and go as in the trace."""
    experiment = x.prepare(x.load("digits", {"clients": clients, **settings}))
    return x.Run(experiment, carrier=TraceCarrier(trace, clients, x.EXECUTORS.make("loop", experiment.site))).go()


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    there = [(client, number) for number in range(1, 21) for client in range(10) if rng.random() < 0.7]
    recorded: Trace = {who: None if rng.random() < 0.1 else float(rng.lognormal(1, 1)) for who in there}
    result = replay(recorded, rounds=20, method="scaffold", deadline=10.0)
    print(f"accuracy {result.accuracy:.3f}, {result.summary['lost']} lost, {result.summary['late']} late")
