"""What tasks cost: seconds and bytes of each client's task, from the fleet and the model's cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.client.trainer import Training, n_steps_each, span_of, trainable
from motley.core.types import Facts, Tree, tree_bytes
from motley.data.federated import FederatedData
from motley.fleet.fleet import Fate, Fleet
from motley.nets.cost import Cost, flops
from motley.nets.width import layer_shares
from motley.protocol.federation import Weights
from motley.run.executors.base import FactsRow


class Ticket(NamedTuple):
    """What is needed to train a task, or to train it again after a restart."""

    client: int
    round: int
    start: Weights
    down: dict[str, Tree]
    dials: dict[str, dict[str, Tensor]]
    assigned: float  # epochs wanted
    floor: float  # fewest epochs worth sending
    worked: float  # epochs the device really spends
    done: float  # epochs whose result is sent; 0: nothing
    lr: float
    dispatched: float
    fate: Fate


def profiled(training: Training, data: FederatedData, fleet: Fleet, cost: Cost, epochs: float) -> NDArray[np.float64]:
    """Seconds a standard task of each client takes when nothing goes wrong: [N]."""
    size = 4.0 * training.net.size
    return np.asarray(epochs * data.sizes * flops(cost, 0) / fleet.flops + size / fleet.down + size / fleet.up)


FINITE = float(np.finfo(np.float64).max)  # stands for devices that take no time, which are infinitely fast


class Charges:
    """Seconds and bytes of tasks on the virtual clock."""

    def __init__(self, training: Training, data: FederatedData, fleet: Fleet, cost: Cost) -> None:
        self.training, self.data, self.fleet, self.cost = training, data, fleet, cost
        self.extra_bytes: int | None = None  # bytes of an upload beside the trained layers; learned from the first
        self.payload_bytes: int | None = None  # bytes of an encoded update; likewise
        self._quickest = min(float(fleet.flops.max()), FINITE)
        self._model_bytes = 4 * training.net.size
        self._share_table: dict[float, Tensor] = {}  # width -> share of each layer
        method = training.method
        self._alike = not (method.has("trainable") or method.has("width") or method.adaptive)
        self._whole = flops(cost, 0)
        self._everything = torch.ones(training.net.n_layers)
        self._last: tuple[Ticket, Facts] | None = None
        self._sent: tuple[Any, int] = (None, 0)  # what was last sent down, and its bytes

    def facts(self, tickets: Sequence[Ticket]) -> list[FactsRow]:
        """What clients know about themselves and their tasks."""
        ids = [ticket.client for ticket in tickets]
        epochs = [ticket.done for ticket in tickets]
        n, flops = self.data.sizes[ids], self.fleet.flops[ids]
        columns = (
            n.astype(np.float64),
            n_steps_each(np.array(epochs), n, self.training.batch_size).astype(np.float64),
            self.fleet.limited[ids].astype(np.float64),
            n * self._whole / flops,
            self._model_bytes / self.fleet.up[ids],
            self._model_bytes / self.fleet.down[ids],
            np.minimum(flops, FINITE) / self._quickest,
        )
        samples, *rest = (column.tolist() for column in columns)
        rounds, rates = ([ticket.round for ticket in tickets], [ticket.lr for ticket in tickets])
        rows = zip(ids, rounds, samples, self.data.labels_of(ids), rates, epochs, *rest, strict=True)
        return list(map(FactsRow._make, rows))

    def _told(self, ticket: Ticket) -> Facts:
        """`facts` of one ticket as tensors; asked for several times in a row, they are made once."""
        if self._last is None or self._last[0] is not ticket:
            self._last = ticket, self.facts([ticket])[0].tensors()
        return self._last[1]

    def trainable(self, ticket: Ticket) -> Tensor:
        """Which layers the client trains, as far as that is known before it does: [L]."""
        if not self.training.method.has("trainable"):
            return self._everything
        return trainable(self.training, self._told(ticket))

    def width(self, ticket: Ticket) -> float | None:
        """The share of each hidden layer that this client trains; None where all clients train whole layers."""
        for _, hook in self.training.method.hooks("width"):
            return float(hook(self.training.net, self._told(ticket)))
        return None

    def shares(self, ticket: Ticket) -> Tensor | None:
        """The share of each layer's parameters that this client holds: [L]; None: all."""
        width = self.width(ticket)
        if width is None:
            return None
        if width not in self._share_table:
            self._share_table[width] = layer_shares(self.training.net, width)
        return self._share_table[width]

    def download_bytes(self, ticket: Ticket) -> int:
        """The model, as wide as the client takes it, and what parts send beside it."""
        if ticket.down is not self._sent[0]:
            self._sent = (ticket.down, tree_bytes(ticket.down))
        shares = None if self._alike else self.shares(ticket)
        if shares is None:
            return self._model_bytes + self._sent[1]
        return 4 * int((self.training.net.layout.layer_sizes * shares).sum().round()) + self._sent[1]

    def upload_bytes(self, ticket: Ticket, trained: Tensor) -> int:
        """The layers that were trained (or what they were encoded into), and what parts report beside them."""
        if self._alike:
            layers = self._model_bytes
        else:
            shares = self.shares(ticket)
            sizes = self.training.net.layout.layer_sizes * trained.cpu()
            layers = 4 * int((sizes if shares is None else sizes * shares).sum().round())
        payload = layers if self.payload_bytes is None else self.payload_bytes
        return payload + (self.extra_bytes or 0)

    def durations(self, tickets: Sequence[Ticket], trained: Sequence[Tensor | None]) -> list[float]:
        """Seconds from dispatch to arrival: download, compute, upload, delay. ``trained`` [L], where known already."""
        if not tickets:
            return []
        ids = [ticket.client for ticket in tickets]
        layers = [self._layers(ticket, known) for ticket, known in zip(tickets, trained, strict=True)]
        samples = np.array([ticket.worked for ticket in tickets]) * self.data.sizes[ids]
        costs = [
            (self.flops_per_sample(ticket, some), self.download_bytes(ticket), self.upload_bytes(ticket, some))
            for ticket, some in zip(tickets, layers, strict=True)
        ]
        operations, down, up = np.array(costs, np.float64).T
        compute = samples * operations / self.fleet.flops[ids]
        download, upload = down / self.fleet.down[ids], up / self.fleet.up[ids]
        sends = np.array([ticket.done > 0 for ticket in tickets])
        delay = np.array([ticket.fate.delay for ticket in tickets])
        seconds: list[float] = (download + compute + np.where(sends, upload, 0.0) + delay).tolist()
        return seconds

    def _layers(self, ticket: Ticket, known: Tensor | None) -> Tensor:
        if known is not None:
            return known
        return self._everything if self._alike else self.trainable(ticket)

    def flops_per_sample(self, ticket: Ticket, trained: Tensor) -> float:
        """Clients that freeze layers while training do so after the first epoch, which costs as if they did not."""
        if self._alike:
            return self._whole
        shares = self.shares(ticket)
        if shares is not None:
            return self._narrow(shares)
        later = flops(self.cost, span_of(trained)[0].first)
        if not self.training.method.adaptive:
            return later
        first = flops(self.cost, span_of(self.trainable(ticket))[0].first)
        whole_epochs = min(1.0, ticket.worked)
        return (whole_epochs * first + (ticket.worked - whole_epochs) * later) / max(ticket.worked, 1e-12)

    def _narrow(self, shares: Tensor) -> float:
        """Operations of a narrow network: those of a layer go with the parameters it has."""
        rows = zip(self.cost.forward, self.cost.backward_input, self.cost.backward_weight, strict=True)
        whole = [forward + into + weight for forward, into, weight in rows]
        whole[0] -= self.cost.backward_input[0]
        return float(sum(cost * share for cost, share in zip(whole, shares.tolist(), strict=True)))
