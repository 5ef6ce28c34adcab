"""How assignments reach clients and reports come back: the half of a federation that knows time and place.

A carrier runs the protocol on an event loop whose clock is its own, so that waiting is `asyncio`'s everywhere. What
becomes of tasks it tells through the function it was opened with, at the moment it happens: being told costs less than
being woken, and a round may have thousands of deliveries.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from motley.core.tasks import Assignment, Delivery, Weights
from motley.core.types import Tree

EMPTY_SECONDS = 60.0  # how long a server waits before it looks again when nobody can be reached

Deliver = Callable[[Delivery], None]


class Carrier(Protocol):
    """Simulated (a fleet, an engine, a virtual clock) or real (a broker, agents, the time of day)."""

    @property
    def now(self) -> float:
        """Seconds since the start."""

    @property
    def n_clients(self) -> int: ...

    @property
    def profile(self) -> Tensor | None:
        """Seconds a task of each client takes when nothing goes wrong [N], where that is known."""

    @property
    def labels(self) -> Tensor | None:
        """Samples per class of each client [N, C], as far as they told; None: they have not."""

    def open(self, channel: str, deliver: Deliver) -> None:
        """From now on ``deliver`` is told what becomes of assignments whose id begins with ``channel``."""

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Runs a protocol to its end."""

    def begin_round(self, channel: str, number: int) -> None:
        """A federation begins a round: what was held back until then may come. A carrier that holds nothing is idle."""
        return None

    def present(self, number: int) -> NDArray[np.bool_]:
        """Who can be reached now, in this round: [N]."""

    def limited(self, clients: Sequence[int]) -> NDArray[np.bool_]:
        """Which of these have told that they are computing-limited."""

    def send(self, assignments: Sequence[Assignment]) -> int:
        """Sends tasks to their clients; the bytes that go down."""

    def cancel(self, ids: Sequence[str]) -> None:
        """Nothing of these is wanted any more."""

    def acknowledge(self, ids: Sequence[str], accepted: bool) -> None:
        """What their clients keep of these tasks counts from now on, or not."""

    def reachable(self, weights: Weights, number: int) -> bool:
        """Whether a model that a client holds can be had in this round."""

    async def bring(self, weights: Weights, number: int) -> tuple[Weights | None, int]:
        """A model that a client holds, with its value (None where it cannot be had), and the bytes that it took."""

    async def nobody(self) -> None:
        """Waits for somebody to come, at most `EMPTY_SECONDS`."""

    def state(self) -> Tree:
        """Everything, between two rounds."""

    def load(self, tree: Tree) -> None:
        """Goes back to what `state` gave."""

    def saved(self) -> None:
        """What `state` gave last is safely on disk: what only older states need may go."""
        return None

    def close(self) -> None:
        """Ends processes and connections."""


def channel_of(task: str) -> str:
    """The federation a task belongs to, by its id."""
    return task[: task.rfind("/") + 1]
