"""A leg in which clients train nothing: each gets the same things once, and tells what it has made of them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from motley.core.codec import Content
from motley.core.files import write_json
from motley.core.keys import Key
from motley.core.layout import Layout
from motley.core.tasks import Assignment, Delivery, Report, Weights
from motley.core.types import Tree
from motley.deploy.blob_store import BlobStore
from motley.deploy.core import DiskSpool
from motley.deploy.disks import Disk
from motley.deploy.field_carrier import Attendance, FieldCarrier, Outside, Spool
from motley.deploy.report_form import MOST_SAMPLES, NUMBERS, ReportError

TRIES = 3  # times a client is asked that does not do it
A_LITTLE = 1e-9  # epochs: nothing is trained, but a task without any would not be one


def told_report(task: str, labels: Tensor, made: Mapping[str, float]) -> Report:
    """What a client tells of what it has now: samples per class [C], and further counts."""
    counts = {name: torch.tensor(value, dtype=torch.float64) for name, value in made.items()}
    ones, zero = torch.ones(1), torch.zeros(())
    return Report(task, labels.to(torch.float32), ones, {"made": counts}, zero, float(labels.sum()), A_LITTLE, 0)


class HandOut:
    """Implements `Leg`."""

    def __init__(
        self,
        attendance: Attendance,
        run_id: str,
        disk: Disk,
        blobs: BlobStore,
        phase: str,
        given: tuple[Weights, Content],
        layout: Layout,
        *,
        classes: int,
        folder: Path | None = None,
        now: float = 0.0,
        spool: Spool | None = None,
    ) -> None:
        """``given``: what every client gets. ``classes``: of the data, whose counts clients tell."""
        self.attendance, self.disk, self.blobs, self.folder = attendance, disk, blobs, folder
        self.given, self.classes = given, classes
        self.told: dict[int, dict[str, Any]] = {}  # of each client that has done it: its counts
        self._asked: Counter[int] = Counter()
        self._waiting: dict[str, tuple[int, asyncio.Future[None]]] = {}
        outside = Outside(run_id, blobs.put, False, phase)
        self.carrier = FieldCarrier(attendance, outside, spool or DiskSpool(disk, layout), 1.0, None, now)
        self.carrier.open("", self._delivered)

    # ------------------------------------------------------------------ life
    @property
    def round(self) -> int:
        return min(1, len(self.told))

    @property
    def has_checkpoint(self) -> bool:
        return self._summary is not None and self._summary.is_file()

    @property
    def done(self) -> bool:
        return self.carrier.loop.done

    @property
    def _summary(self) -> Path | None:
        return None if self.folder is None else self.folder / "summary.json"

    def begin(self) -> None:
        self.carrier.run(self._ask())

    def take_up(self) -> None:
        """It was over: who told what is known again."""
        assert self._summary is not None
        for client, told in json.loads(self._summary.read_text())["clients"].items():
            self._know(int(client), told)
        self.carrier.run(self._nothing())

    async def _nothing(self) -> None:
        """All is done."""

    async def _ask(self) -> None:
        """Asks everybody who is there, and who failed a few times more, until all have told who can."""
        while True:
            here = [int(client) for client in self.attendance.here.nonzero()[0]]
            ask = [client for client in here if client not in self.told and self._asked[client] < TRIES]
            if ask:
                await self._ask_these(ask)
            elif self.told:
                return
            else:
                await self.carrier.nobody()

    async def _ask_these(self, clients: list[int]) -> None:
        assignments = []
        for client in clients:
            self._asked[client] += 1
            name = f"1.{client}-{self._asked[client]}"
            start, down = self.given
            a = Assignment(name, client, 1, start, down, {}, A_LITTLE, A_LITTLE, False, 0.0, Key.root(0))
            self._waiting[name] = client, asyncio.get_running_loop().create_future()
            assignments.append(a)
        futures = [future for _, future in self._waiting.values()]
        self.carrier.send(assignments)
        await asyncio.wait(futures)

    def _delivered(self, delivery: Delivery) -> None:
        client, future = self._waiting.pop(delivery.id)
        if delivery.report is not None:
            made = {name: float(value) for name, value in delivery.report.extras["made"].items()}
            self._know(client, {"labels": [float(one) for one in delivery.report.payload], **made})
        future.set_result(None)

    def _know(self, client: int, told: dict[str, Any]) -> None:
        self.told[client] = told
        roster = self.attendance.roster
        seat = roster.seats.get(client)
        if seat is not None:
            n = int(sum(told["labels"]))
            seconds = seat.seconds_per_epoch * n / max(1, seat.n)
            roster.seats[client] = replace(seat, n=n, labels=tuple(told["labels"]), seconds_per_epoch=seconds)

    def finish(self) -> dict[str, Any]:
        """Sums up, and writes it down."""
        names = sorted({name for told in self.told.values() for name in told} - {"labels"})
        sums = {name: int(sum(told[name] for told in self.told.values())) for name in names}
        clients = {str(client): told for client, told in sorted(self.told.items())}
        summary = {**sums, "clients": clients}
        if self._summary is not None and not self.has_checkpoint:
            self._summary.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._summary, summary)
        return summary

    def close(self) -> None:
        self.carrier.close()

    # ------------------------------------------------------------------ what comes
    def check(self, task_id: str, name: str) -> None:
        tree = self.disk.load(name)
        if not isinstance(tree, dict) or set(tree) != {"payload", "trained", "extras", "loss", *NUMBERS}:
            raise ReportError("it has not the parts of a report")
        total = _check_counts(tree["payload"], self.classes)
        _check_made(tree["extras"])
        trained = tree["trained"]
        if not isinstance(trained, Tensor) or trained.shape != (1,) or tree["n"] != total:
            raise ReportError("its number of samples is not that of its classes")

    def check_model(self, name: str) -> None:
        raise ReportError("no model is wanted in this phase")


def _check_made(extras: Tree) -> None:
    made = extras.get("made") if isinstance(extras, dict) and set(extras) == {"made"} else None
    if not isinstance(made, dict) or not 0 < len(made) <= 16:
        raise ReportError("what it says it has made is no table of counts")
    for value in made.values():
        if not isinstance(value, Tensor) or value.shape != () or not 0 <= float(value) <= MOST_SAMPLES:
            raise ReportError("what it says it has made is no table of counts")


def _check_counts(labels: Tree, classes: int) -> float:
    """How many samples a client says it has now; refuses counts that cannot be."""
    if not isinstance(labels, Tensor) or labels.dtype != torch.float32 or labels.shape != (classes,):
        raise ReportError(f"its counts are not one number for each of {classes} classes")
    if not bool(((labels >= 0) & (labels <= MOST_SAMPLES) & (labels == labels.round())).all()) or labels.sum() <= 0:
        raise ReportError("its counts of samples cannot be")
    return float(labels.sum())
