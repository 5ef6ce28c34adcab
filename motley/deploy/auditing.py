"""A deployed run's folder replayed offline: its log gives its model again, or something is wrong."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from motley.core.errors import StateError
from motley.core.tasks import Assignment, Finished, Kept
from motley.deploy.event_log import EventLog
from motley.deploy.field_carrier import Attendance
from motley.deploy.replaying import Retrained, replay
from motley.deploy.roster import Roster
from motley.deploy.server_process import Settings, deploy_disk, opened
from motley.engine.loop import one_thread, run_task
from motley.runtime.experiment import Experiment, prepare
from motley.runtime.folders import read_summary


class Replayed(NamedTuple):
    """What came of a replay."""

    digest: str
    entries: int
    how: str


def replay_folder(folder: Path) -> Replayed:
    """Replays a finished run, with the updates it kept, or, after a rehearsal, with updates trained anew."""
    e = prepare(opened(folder))
    if read_summary(folder) is None:
        raise StateError(f"The run in {folder} has not ended yet; finish it with 'motley resume {folder}' first.")
    with closing(deploy_disk(folder)) as disk:
        settings = Settings.load(disk)
        if not settings.audit and not settings.rehearsal:
            raise StateError("The updates of this run were not kept; serve with --audit to replay a run later.")
        log = EventLog(disk)
        attendance = Attendance(Roster(e.data.n_clients), e.fleet if settings.rehearsal else None)
        spool = None if settings.audit else _trained_anew(e)
        result = replay(e, settings.federation, attendance, log.entries(), disk, spool)
    how = "the updates that were kept" if settings.audit else "updates trained anew"
    return Replayed(str(result.summary["model_sha256"]), log.seq, how)


def _trained_anew(e: Experiment) -> Retrained:
    def train(task_id: str, a: Assignment, own: Kept | None) -> Finished:
        with one_thread():
            return run_task(e.site, a, e.site.facts([a]).row(0), own)

    return Retrained(e.method, train)
