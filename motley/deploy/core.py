"""A deployed run without its surroundings: a run of Motley's, moved by the entries of a log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from motley.client.site import Devices, Site
from motley.core.layout import Layout
from motley.core.tasks import Report, Weights
from motley.data.federated import FederatedData, Partition
from motley.deploy.blob_store import BlobStore
from motley.deploy.disks import Disk
from motley.deploy.field_carrier import Attendance, FieldCarrier, Outside, Sent, Spool
from motley.deploy.legs import Leg, Saved
from motley.deploy.report_form import ReportForm, check_model, decodes, report_from
from motley.deploy.roster import Roster, ToldData
from motley.fleet.fleet import Fleet
from motley.nets.cost import flops
from motley.runtime.experiment import Experiment
from motley.runtime.launch import Listening, Result, Run, has_checkpoint

SPOOL = "spool/"


def told_experiment(e: Experiment, roster: Roster) -> Experiment:
    """An experiment as the server of a deployment knows it: its own test samples, and what clients told."""
    return replace(e, data=ToldData.of(e.dataset, roster))


def server_site(e: Experiment) -> Site:
    """A site with one client that holds a few of the server's test samples."""
    few = min(4, len(e.dataset.test_y))
    dataset = replace(e.dataset, x=e.dataset.test_x[:few], y=e.dataset.test_y[:few], groups={}, test_groups={})
    data = FederatedData(dataset, Partition.of([np.arange(few)]))
    return Site(e.training, data, Devices.of(Fleet.ideal(1, e.key), flops(e.cost, 0), 4 * e.net.size))


class DiskSpool:
    """Implements `Spool` by files."""

    def __init__(self, disk: Disk, layout: Layout) -> None:
        self.disk, self.layout = disk, layout

    def report(self, sent: Sent) -> tuple[Report, int]:
        name = SPOOL + sent.task.id
        return report_from(self.disk.load(name), self.layout, sent.task.client), self.disk.size(name) or 0

    def model(self, digest: str) -> Weights:
        return Weights(self.disk.load(SPOOL + digest), digest)


class Core:
    """State = f(recipe, log). Implements `Leg`."""

    def __init__(
        self,
        e: Experiment,
        run_id: str,
        attendance: Attendance,
        disk: Disk,
        blobs: BlobStore,
        *,
        folder: Path | None = None,
        listeners: Listening = (),
        spool: Spool | None = None,
        saved: Callable[[int], None] | None = None,
        phase: str = "",
    ) -> None:
        """``folder`` is where checkpoints and records go. ``spool`` tells what came of a task in place of the files on
        disk. ``saved`` is told after which entry a checkpoint was made."""
        self.e, self.disk, self.blobs = e, disk, blobs
        outside = Outside(run_id, blobs.put, e.method.has("keep"), phase)
        came = spool or DiskSpool(disk, e.net.layout)
        self.carrier = FieldCarrier(attendance, outside, came, e.recipe.epochs, saved, e.now)
        self.run = Run(told_experiment(e, attendance.roster), folder, listeners, carrier=self.carrier)
        self._form: ReportForm | None = None

    # ------------------------------------------------------------------ from beginning to end
    def begin(self) -> None:
        """The protocol runs as far as it can before anything has happened."""
        self.run.begin()
        self.carrier.loop.begin(self.run.drive())

    def take_up(self) -> None:
        """Goes on from the last checkpoint."""
        self.run.take_up()
        self.begin()

    @property
    def round(self) -> int:
        return self.run.fed.ledger.round

    @property
    def has_checkpoint(self) -> bool:
        return self.run.folder is not None and has_checkpoint(self.run.folder)

    @property
    def done(self) -> bool:
        return self.carrier.loop.done

    def save(self) -> None:
        """Writes a checkpoint of what it came to."""
        if self.run.folder is not None:
            self.run.save()

    def finish(self) -> Result:
        try:
            return self.run.finish()
        finally:
            self.run.close()

    def close(self) -> None:
        self.run.close()

    # ------------------------------------------------------------------ updates
    def check_model(self, name: str) -> None:
        """Refuses a file that cannot be a model of this run."""
        check_model(self.disk.load(name), self.e.net.size)

    def check(self, task_id: str, name: str) -> None:
        """Refuses a file that cannot be the report of an open task: `ReportError`, or ValueError."""
        sent = self.carrier.outside.open[task_id]
        if self._form is None:
            self._form = ReportForm.of(server_site(self.e), sent.assignment)
        report = self._form.read(self.disk.load(name), sent.task)
        if not sent.task.keep:
            decodes(report, self.run.fed.ledger.server.decode)


class Plain:
    """Implements `Course` for a recipe without phases: one leg."""

    def __init__(self, new_core: Callable[[Attendance, Saved], Core]) -> None:
        self.new_core = new_core

    def first(self, attendance: Attendance, saved: Saved) -> Core:
        return self.new_core(attendance, saved)

    def after(self, leg: Leg, attendance: Attendance, now: float, saved: Saved) -> None:
        """There is nothing after it."""

    def finish(self, leg: Leg) -> Result:
        assert isinstance(leg, Core)
        return leg.finish()
