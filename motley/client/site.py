"""Where clients train: what all of them do alike, their data, and what each knows of its device.

A simulation is one site with all clients, an agent of a deployment a site with one. A client's `Facts` are made here,
from its own samples and its own device; an assignment does not bring them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from motley.client.minibatch import n_steps_each
from motley.client.trainer import Training
from motley.core.tasks import Assignment
from motley.core.types import Facts
from motley.data.federated import FederatedData
from motley.fleet.fleet import Fleet

FINITE = float(np.finfo(np.float64).max)  # stands for devices that take no time, which are infinitely fast


@dataclass(frozen=True)
class Devices:
    """What clients know of their devices and links."""

    flops: NDArray[np.float64]  # [N] operations per second
    down: NDArray[np.float64]  # [N] bytes per second
    up: NDArray[np.float64]
    limited: NDArray[np.bool_]
    work: float  # operations to train one sample of the whole model
    model_bytes: int
    quickest: float  # operations per second of the fastest device

    @classmethod
    def of(cls, fleet: Fleet, work: float, model_bytes: int) -> Devices:
        quickest = min(float(fleet.flops.max()), FINITE)
        return cls(fleet.flops, fleet.down, fleet.up, fleet.limited, work, model_bytes, quickest)

    def columns(self, ids: list[int], n: NDArray[np.int64]) -> list[NDArray[Any]]:
        """limited, seconds per epoch, upload, download, capability of some clients with n samples: [K] each."""
        flops = self.flops[ids]
        return [
            self.limited[ids],
            n * self.work / flops,
            self.model_bytes / self.up[ids],
            self.model_bytes / self.down[ids],
            np.minimum(flops, FINITE) / self.quickest,
        ]


@dataclass(frozen=True)
class Site:
    """A place where clients are trained."""

    training: Training
    data: FederatedData
    devices: Devices

    def facts(self, assignments: Sequence[Assignment]) -> Facts:
        """What clients know about themselves and these tasks, stacked on the host: [K]."""
        ids = [a.client for a in assignments]
        n = self.data.sizes[ids]
        epochs = np.array([a.epochs for a in assignments])
        steps = n_steps_each(epochs, n, self.training.batch_size)
        rates = np.array([a.lr for a in assignments])
        limited, *others = self.devices.columns(ids, n)
        columns = np.array([n, rates, epochs, steps, limited, *others], np.float64)
        samples, lr, passes, counts, *rest = torch.from_numpy(columns).to(torch.float32).unbind()
        whole = torch.tensor([ids, [a.round for a in assignments]])
        labels = torch.from_numpy(self.data.labels_of(ids)).to(torch.float32)
        return Facts(whole[0], whole[1], samples, labels, lr, passes, counts, *rest)
