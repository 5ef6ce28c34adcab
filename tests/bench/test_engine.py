"""The engine benchmark: same work for all, honest floors, rows as documented."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from motley.bench import cases
from motley.bench.cases import Case, make_site, make_tasks
from motley.bench.executors import BARE, Bare, Ours, engine, plot
from motley.bench.floor import Ceilings, Work, ceilings, output_numbers, passes, work_of
from motley.bench.workloads import Plan, Workload
from motley.client.site import Site
from motley.commands.cli import app
from motley.core.errors import UnknownNameError
from motley.core.keys import Key
from motley.core.tasks import Assignment, Weights
from motley.engine.batched.together import Batched
from motley.engine.loop import Loop
from motley.nets.zoo import build

SMALL = Case("small", "a test", (1, 8, 8), "mlp(hidden=[6])", 12, 5, 1.5, 4, 10, power_law=True, classes=3)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setitem(cases.CASES, "small", SMALL)
    return SMALL


def test_all_train_to_the_same_model() -> None:
    workload = Workload(Plan(SMALL))
    site = make_site(SMALL, workload.data, workload.key.fold("init"))
    start = workload.net.initial()
    bare = Bare(workload, make_tasks(SMALL, Weights(start), workload.key, 1), 1).round()
    loop = Ours("loop", Loop(site), workload).round()
    batched = Ours("batched", Batched(site, "cpu"), workload).round()
    scale = (loop - start).abs().max()
    assert (bare - loop).abs().max() < 1e-5 * scale
    assert (batched - loop).abs().max() < 1e-5 * scale


def round_of(case: Case) -> tuple[Site, list[Assignment], list[tuple[int, int]]]:
    """A round's site and tasks, and each task's samples and steps."""
    workload = Workload(Plan(case))
    site = make_site(case, workload.data, workload.key.fold("init"))
    tasks = make_tasks(case, Weights(workload.net.initial()), workload.key, 1)
    facts = site.facts(tasks)
    return site, tasks, [(int(n), int(steps)) for n, steps in zip(facts.n, facts.steps, strict=True)]


def test_the_work_of_a_round_by_hand() -> None:
    site, tasks, counts = round_of(replace(SMALL, power_law=False, epochs=1.0))
    assert counts == [(10, 3)] * 5
    assert [passes(n, steps, 4) for n, steps in counts] == [10] * 5
    work = work_of(site, tasks)
    parameters, outputs = 64 * 6 + 6 + 6 * 3 + 3, 6 + 3
    assert site.training.net.size == parameters
    assert work.bytes == 12 * parameters * 15 + 50 * (64 + 12 * outputs)
    assert work.flops == 50 * (2 * 64 * 6 * 2 + 2 * 6 * 3 * 3)  # no gradient for the images themselves


def test_fractions_of_epochs_count_as_begun() -> None:
    _, _, counts = round_of(replace(SMALL, power_law=False))
    assert {(steps, passes(n, steps, 4)) for n, steps in counts} == {(4, 14)}


def test_the_floor_is_the_higher_of_two() -> None:
    work = Work(1e9, 1e6)
    assert work.seconds(Ceilings(1e9, 1e9)) == 1.0
    assert work.bound(Ceilings(1e9, 1e9)) == "arithmetic"
    assert work.seconds(Ceilings(1e12, 1e6)) == 1.0
    assert work.bound(Ceilings(1e12, 1e6)) == "memory"


def test_ceilings_are_those_of_a_machine() -> None:
    found = ceilings(torch.device("cpu"), repeats=1)
    assert 1e8 < found.flops < 1e15
    assert 1e7 < found.bandwidth < 1e14


def test_outputs_of_layers() -> None:
    net = build("cnn_ama(channels=[2], hidden=[5], padding=2)", (1, 8, 8), 3, 0, Key.root(0))
    assert output_numbers(net, torch.zeros(1, 1, 8, 8)) == 2 * 8 * 8 + 5 + 3


def test_rows(small: Case, tmp_path: Path) -> None:
    rows = engine(["small"], "cpu", rounds=1, executors=["loop"])
    assert rows[0]["executor"] == BARE
    assert rows[-1]["executor"] == "loop"
    assert all(row["executor"].startswith(BARE) for row in rows[:-1])
    assert rows[0]["ms_per_round"] == min(row["ms_per_round"] for row in rows[:-1])
    for row in rows:
        assert row["case"] == "small"
        assert row["ms_per_round"] > 0
        assert row["client_steps_per_s"] > 0
        assert row["ratio_to_floor"] > 1
    assert rows[0]["ratio_to_bare_loop"] == 1.0
    assert plot(rows, tmp_path / "engine.png").stat().st_size > 5000


def test_executors_take_arguments(small: Case) -> None:
    rows = engine(["small"], "cpu", rounds=1, executors=["batched(workers=1)"])
    assert rows[-1]["executor"] == "batched(workers=1)"
    assert 0 <= rows[-1]["waste"] < 1


def test_the_command(small: Case) -> None:
    arguments = ["bench", "engine", "--cases", "small", "--rounds", "1", "--device", "cpu", "--executors", "loop"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0
    rows = json.loads(result.stdout.splitlines()[-1])
    keys = {"case", "executor", "device", "precision", "ms_per_round", "client_steps_per_s", "ratio_to_bare_loop"}
    assert keys | {"ratio_to_floor", "waste"} <= set(rows[0])


def test_unknown_cases_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="cifar"):
        engine(["cifar"])


def test_unknown_executors_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'loop'"):
        engine(["mlp"], "cpu", executors=["lop"])
