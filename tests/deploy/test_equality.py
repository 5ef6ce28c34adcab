"""The same protocols and methods over a real broker, with TLS and credentials, give the simulation's model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from motley.deploy.disks import FolderDisk
from motley.deploy.event_log import EventLog
from motley.deploy.field_carrier import Attendance
from motley.deploy.rehearsal import simulated
from motley.deploy.replaying import Retrained, replay
from motley.deploy.roster import Roster
from motley.engine.loop import one_thread, run_task
from motley.runtime.experiment import Experiment
from tests.deploy.field import Field, tiny

PUNCTUAL: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {"method": "scaffold"},
    "rebafl": {"method": "rebafl", "model": "mlp(hidden=[16])"},
    "ama_fes": {"method": "ama_fes", "model": "mlp(hidden=[16])", "fleet": "limited(fraction=0.5)"},
    "radfed": {"method": "radfed(S=3)"},
    "freezefl": {"method": "freezefl(selection=false)", "model": "mlp(hidden=[16])"},
    "stc": {"method": "stc", "model": "mlp(hidden=[16])"},
    "redistribute": {"protocol": "redistribute"},
    "mediators": {"protocol": "mediators", "options": {"groups": 2, "passes": 2}},
}
GANDALF: dict[str, Any] = {
    "clients": 3,
    "cohort": 3,
    "partition": "classes(per_client=4)",
    "model": "mlp(hidden=[8])",
    "phases": [
        {"name": "first", "rounds": 2},
        {"name": "gan", "kind": "gan", "network": "gan_mlp(hidden=[16], latent=4)", "groups": 2, "rounds": 2},
        {"name": "samples", "kind": "generate", "labels": "classifier", "classifier": "first", "each": 2, "tau": 0.1},
        {"name": "model", "protocol": "mediators", "options": {"groups": 1}, "rounds": 2, "initial": "first"},
    ],
}
WAITING: dict[str, dict[str, Any]] = {
    "late": {"protocol": "late", "deadline": 5.0},
    "asynchronous": {"protocol": "asynchronous", "options": {"buffer": 2}},
    "semi_asynchronous": {"protocol": "semi_asynchronous", "deadline": 5.0},
    "tiered": {"protocol": "tiered", "options": {"tiers": 2}},
}


@pytest.mark.parametrize("name", PUNCTUAL)
def test_the_model_is_the_simulations(name: str, tmp_path: Path) -> None:
    field = Field(tiny(**PUNCTUAL[name]), tmp_path)
    result = field.run()
    assert result.summary["model_sha256"] == simulated(field.e)
    assert all(agent.agent is not None for agent in field.agents)
    assert sum(agent.agent.trained for agent in field.agents if agent.agent) >= 3


def test_gandalf_from_its_generators_to_its_model(tmp_path: Path) -> None:
    field = Field(tiny(**GANDALF), tmp_path)
    result = field.run()
    assert result.summary["model_sha256"] == simulated(field.e)
    assert list(result.summary["phases"]) == ["first", "gan", "samples", "model"]
    made = result.summary["phases"]["samples"]
    assert made["added"] > 0
    assert set(made["clients"]) == {"0", "1", "2"}
    seats = field.server.serving.roster.seats  # type: ignore[union-attr]
    told = [seats[number].n for number in range(3)]
    assert told == [sum(one["labels"]) for one in made["clients"].values()]
    assert sum(told) == int(field.e.data.sizes.sum()) + made["added"]


def retrained(e: Experiment, folder: Path, federation: str) -> str:
    """The digest of what a log gives with updates that are trained anew."""

    def train(task_id: str, a: Any, own: Any) -> Any:
        with one_thread():
            return run_task(e.site, a, e.site.facts([a]).row(0), own)

    disk = FolderDisk(folder / "deploy")
    entries = list(EventLog(disk).entries())
    attendance = Attendance(Roster(e.data.n_clients), e.fleet)
    found = replay(e, federation, attendance, entries, disk, Retrained(e.method, train))
    disk.close()
    return str(found.summary["model_sha256"])


@pytest.mark.parametrize("name", WAITING)
def test_a_run_that_depends_on_arrivals_is_the_replay_of_its_log(name: str, tmp_path: Path) -> None:
    field = Field(tiny(**WAITING[name]), tmp_path)
    result = field.run()
    assert retrained(field.e, field.folder, field.settings.federation) == result.summary["model_sha256"]


def test_kept_updates_replay_without_training(tmp_path: Path) -> None:
    field = Field(tiny(method="scaffold", protocol="late", deadline=5.0), tmp_path, audit=True)
    result = field.run()
    disk = FolderDisk(field.folder / "deploy")
    attendance = Attendance(Roster(field.e.data.n_clients), field.e.fleet)
    found = replay(field.e, field.settings.federation, attendance, EventLog(disk).entries(), disk)
    disk.close()
    assert found.summary["model_sha256"] == result.summary["model_sha256"]
