"""What tasks cost: seconds and bytes of each client's task, from the fleet, the model's cost and what parts add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.client.site import Site
from motley.client.trainer import sent, span_of, trainable
from motley.core.bill import Bill, Cost
from motley.core.codec import Content
from motley.core.stacking import tree_bytes
from motley.core.tasks import Assignment, Report
from motley.core.types import Facts
from motley.engine.reports import width_of
from motley.fleet.fleet import Fleet
from motley.fleet.timing import task_timing
from motley.nets.cost import flops
from motley.nets.width import layer_shares


class Work(NamedTuple):
    """A task as a device carries it out."""

    task: Assignment  # with the epochs whose result is sent; 0: nothing is
    spent: float  # epochs the device trains
    delay: float  # seconds of transmission beside those of its link
    trained: Tensor | None = None  # [L], where known already
    up: int | None = None  # bytes of the upload, where known already


class Costs:
    """Seconds and bytes of tasks on the virtual clock."""

    def __init__(self, site: Site, fleet: Fleet, cost: Cost) -> None:
        self.site, self.fleet, self.cost = site, fleet, cost
        self.extra_bytes: int | None = None  # of an upload beside the trained layers; learned from the first
        net, method = site.training.net, site.training.method
        self.net, self.method = net, method
        self._model_bytes = 4 * net.size
        self._shares: dict[float, Tensor] = {}  # width -> share of each layer
        self._problem = site.training.problem
        billed = ("trainable", "sent", "width", "epoch", "encode", "bill")
        self._alike = not self._problem.bills and not any(map(method.has, billed))
        self._whole = flops(cost, 0)
        self._forward = cost.whole_forward
        self._everything = torch.ones(net.n_layers)
        self._sent_layers = sent(site.training)
        self._last: tuple[Assignment, Facts] | None = None
        self._sent: tuple[Content | None, int] = (None, 0)  # what was last sent down, and its bytes

    @property
    def known(self) -> bool:
        """Whether the time of a task can be told before it is trained."""
        return self.extra_bytes is not None and not self.method.adaptive

    def profile(self, epochs: float) -> NDArray[np.float64]:
        """Seconds a standard task of each client takes when nothing goes wrong: [N]."""
        everyone = np.arange(self.fleet.n_clients)
        work = epochs * self.site.data.sizes * self._whole
        size = float(self._model_bytes)
        return task_timing(self.fleet, everyone, flops=work, bytes_down=size, bytes_up=size).total

    def seconds(self, works: Sequence[Work]) -> list[float]:
        """From dispatch to arrival: download, compute, upload, delay."""
        if not works:
            return []
        ids = [one.task.client for one in works]
        spent = np.array([one.spent for one in works]) * self.site.data.sizes[ids]
        rows = [self._stages(one) for one in works]
        per_sample, once, down, up = np.array(rows, np.float64).T
        timing = task_timing(
            self.fleet,
            ids,
            flops=spent * per_sample + once,
            bytes_down=down,
            bytes_up=np.where([one.task.epochs > 0 for one in works], up, 0.0),
            delay=np.array([one.delay + self._handing(one.task) for one in works]),
        )
        total: list[float] = timing.total.tolist()
        return total

    def _handing(self, a: Assignment) -> float:
        """Seconds by which the link of the client that hands a model on is slower than that of the receiver."""
        if a.start.holder is None:
            return 0.0
        up, down = float(self.fleet.up[a.start.holder]), float(self.fleet.down[a.client])
        return max(0.0, self._model_bytes / up - self._model_bytes / down)

    def bringing(self, holder: int) -> float:
        """Seconds in which a client sends its model up."""
        return self._model_bytes / float(self.fleet.up[holder])

    @property
    def model_bytes(self) -> int:
        return self._model_bytes

    def _stages(self, one: Work) -> tuple[float, float, float, float]:
        """Operations per sample of a step, operations once per task, bytes down, bytes up."""
        if self._alike:
            return self._whole, 0.0, self.received_bytes(one.task), self._expected_up(one, self._everything)
        bill, n = self._bill(one.task), float(self.site.data.sizes[one.task.client])
        trained = one.trained if one.trained is not None else self.trainable(one.task)
        beside = bill.forwards * self._forward + bill.backwards * (self._whole - self._forward)
        once = n * (bill.passes * self._forward + bill.gradients * self._whole)
        up = self._expected_up(one, trained)
        moved = self.trainable(one.task) if self.method.has("sent") else trained  # also what is not sent
        return self._per_sample(one, moved) + beside, once, self.received_bytes(one.task), up

    def _expected_up(self, one: Work, trained: Tensor) -> int:
        """Bytes of an upload: those of a task that is trained already, else what its layers and extras will take."""
        if one.up is not None:
            return one.up
        layers = 0 if one.task.keep else self._model_bytes if self._alike else self._layer_bytes(one.task, trained)
        return layers + (self.extra_bytes or 0)

    def _told(self, a: Assignment) -> Facts:
        """The facts of one client; asked for several times in a row, they are made once."""
        if self._last is None or self._last[0] is not a:
            self._last = a, self.site.facts([a]).row(0)
        return self._last[1]

    def _bill(self, a: Assignment) -> Bill:
        bill = Bill()
        if self._problem.bills:
            bill = self._problem.bill(self.net, self.cost, self._told(a), bill)
        for _, hook in self.method.hooks("bill"):
            bill = hook(self.net, self.cost, self._told(a), bill)
        return bill

    def trainable(self, a: Assignment) -> Tensor:
        """Which layers the client trains, as far as that is known before it does: [L]."""
        return trainable(self.site.training, self._told(a)) if self.method.has("trainable") else self._everything

    def _layer_shares(self, a: Assignment) -> Tensor | None:
        """The share of each layer's parameters that this client holds: [L]; None: all."""
        width = width_of(self.site.training, self._told(a)) if self.method.has("width") else None
        if width is None:
            return None
        if width not in self._shares:
            self._shares[width] = layer_shares(self.net, width)
        return self._shares[width]

    def download_bytes(self, a: Assignment) -> int:
        """What the server sends of a task: all that the client receives, unless another client hands it the model."""
        received = self.received_bytes(a)
        return received if a.start.holder is None else self._sent[1]

    def received_bytes(self, a: Assignment) -> int:
        """The model, as wide as the client takes it, and what parts send beside it."""
        if a.down is not self._sent[0]:
            self._sent = (a.down, tree_bytes(a.down.tree))
        if self._alike:
            return self._model_bytes + self._sent[1]
        instead = self._bill(a).down
        if instead is not None:
            return int(instead) + self._sent[1]
        return self._layer_bytes(a, self._everything) + self._sent[1]

    def upload_bytes(self, a: Assignment, report: Report) -> int:
        """What a report really takes: the layers that were trained (or what they were encoded into), and extras."""
        extras = tree_bytes(report.extras) if report.extras else 0
        if a.keep:
            return extras
        if self.method.has("encode"):
            return tree_bytes(report.payload) + extras
        return (self._model_bytes if self._alike else self._layer_bytes(a, report.trained)) + extras

    def _layer_bytes(self, a: Assignment, trained: Tensor) -> int:
        shares = self._layer_shares(a)
        sizes = self.net.layout.layer_sizes * trained.cpu() * self._sent_layers
        return 4 * int((sizes if shares is None else sizes * shares).sum().round())

    def _per_sample(self, one: Work, trained: Tensor) -> float:
        """Clients that freeze layers while training do so after the first epoch, which costs as if they did not."""
        shares = self._layer_shares(one.task)
        if shares is not None:
            return self._narrow(shares)
        later = flops(self.cost, span_of(trained)[0].first)
        if not self.method.has("epoch"):
            return later
        first = flops(self.cost, span_of(self.trainable(one.task))[0].first)
        whole_epochs = min(1.0, one.spent)
        return (whole_epochs * first + (one.spent - whole_epochs) * later) / max(one.spent, 1e-12)

    def _narrow(self, shares: Tensor) -> float:
        """Operations of a narrow network: those of a layer go with the parameters it has."""
        rows = zip(self.cost.forward, self.cost.backward_input, self.cost.backward_weight, strict=True)
        whole = [forward + into + weight for forward, into, weight in rows]
        whole[0] -= self.cost.backward_input[0]
        beside = self.cost.frozen + self.cost.frozen_after
        return beside + float(sum(cost * share for cost, share in zip(whole, shares.tolist(), strict=True)))
