"""How long a task takes on a device and over its link: plain arithmetic on numbers or arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from motley.fleet.fleet import Fleet

Seconds = NDArray[np.float64]


class Timing(NamedTuple):
    """Seconds of each stage of each task: [K]."""

    download: Seconds
    compute: Seconds
    upload: Seconds
    delay: Seconds

    @property
    def total(self) -> Seconds:
        """Seconds from dispatch to arrival: [K]."""
        return self.download + self.compute + self.upload + self.delay


def task_timing(
    fleet: Fleet,
    clients: ArrayLike,
    *,
    flops: ArrayLike,
    bytes_down: ArrayLike,
    bytes_up: ArrayLike,
    delay: ArrayLike = 0.0,
) -> Timing:
    """Seconds of tasks: t = bytes_down / down_k + flops / flops_k + bytes_up / up_k + delay.

    ``flops`` are those of all the steps the client really does (frozen layers cost less), bytes are those really sent
    (frozen layers and compression count), ``delay`` comes from the fates. Each is one number, or one per client [K].
    """
    ids = np.asarray(clients, np.int64)

    def stage(amount: ArrayLike, rate: NDArray[np.float64]) -> Seconds:
        return np.broadcast_to(np.asarray(amount, np.float64) / rate[ids], ids.shape)

    return Timing(
        stage(bytes_down, fleet.down),
        stage(flops, fleet.flops),
        stage(bytes_up, fleet.up),
        np.broadcast_to(np.asarray(delay, np.float64), ids.shape),
    )
