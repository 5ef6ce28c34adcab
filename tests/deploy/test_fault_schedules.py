"""Random schedules of faults in virtual time: what must hold holds, and what is broken on purpose is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from motley.deploy import agent, logged_run, serving
from motley.deploy.fault_processes import CASES, Case
from motley.deploy.fault_schedules import FaultSchedule, run_schedules

EACH = 25


@pytest.mark.parametrize("first", range(0, 200, EACH))
def test_nothing_is_lost(first: int) -> None:
    counts, failures = run_schedules(first, first + EACH)
    assert failures == []
    assert counts["schedules"] == EACH
    assert counts["killed: agent"] + counts["killed: server"] > EACH
    assert counts["arrived"] > 5 * EACH


def test_a_schedule_is_the_same_again() -> None:
    case = Case.make("late")
    worlds = [FaultSchedule(11, case, "leases") for _ in range(2)]
    for world in worlds:
        world.go()
    assert worlds[0].result_sha == worlds[1].result_sha
    assert worlds[0].counts == worlds[1].counts


def test_every_case_is_known() -> None:
    assert {"fedavg", "scaffold", "late", "asynchronous", "mediators"} <= set(CASES)


def _log_without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does not wait until the log is on disk."""
    monkeypatch.setattr("motley.deploy.event_log.EventLog.sync", lambda self: None)


def _any_basis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes any basis: what a client keeps is what it kept last."""

    def own(self: Any, task_id: str) -> Any:
        newest = sorted(self.disk.names(agent.OWN))[-1:]
        return self.disk.load(newest[0]) if newest else {}

    monkeypatch.setattr(agent.Cupboard, "own", own)


def _no_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does not send again what was lost."""
    monkeypatch.setattr(serving.Serving, "_repair", lambda self, client, known: None)


def _spool_dropped_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Throws updates away once they are merged, before a checkpoint holds them."""
    apply = logged_run.LoggedRun._apply

    def hasty(self: Any, entry: Any) -> Any:
        kept = apply(self, entry)
        if entry.kind == "arrive":
            self.disk.delete(logged_run.SPOOL + entry.what[0])
        return kept

    monkeypatch.setattr(logged_run.LoggedRun, "_apply", hasty)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "a log that is not synced": (_log_without_sync, "scaffold"),
    "another basis": (_any_basis, "scaffold"),
    "nothing is sent again": (_no_repair, "fedavg"),
    "updates thrown away early": (_spool_dropped_early, "fedavg"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_faults_of_the_code_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, case_name = MUTANTS[name]
    case = Case.make(case_name)
    mutate(monkeypatch)
    for seed in range(30):
        try:
            FaultSchedule(1000 + seed, case, "patient" if seed % 2 else "leases").go()
        except Exception:
            return
    pytest.fail(f"30 schedules did not notice: {name}")
