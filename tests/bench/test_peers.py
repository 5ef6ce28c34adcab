"""The comparison is fair: all frameworks do the same steps, and on equal minibatches end at the same model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from motley.bench import peers, peers_flower, peers_pfl, peers_process
from motley.bench.cases import Case
from motley.bench.peers import Contender, check, compare, contenders, draw
from motley.bench.workloads import Plan, Timing, Workload, bare, motley, precision
from motley.core.errors import InputError, TrainingError

TINY = Case("tiny", "unequal clients", (1, 12, 12), "cnn_rebafl(channels=[4, 6])", 12, 5, 2, 5, 13, power_law=True)
PLAN = Plan(TINY, rounds=2, warmup=1)
COLUMNS = ["case", "framework", "device", "precision", "ms_per_round", "client_steps_per_s"]
RATIOS = ["ratio_to_bare_loop", "ratio_to_motley", "ratio_to_floor", "note"]


def same_work(done: Timing, workload: Workload) -> None:
    """As many steps as wanted, and the bare loop's model."""
    reference = bare(workload)
    assert done.steps == reference.steps == workload.wanted_steps
    assert len(done.seconds) == workload.plan.rounds
    assert all(seconds > 0 for seconds in done.seconds)
    change = (reference.model - workload.net.initial()).abs().max()
    assert change > 0.01
    assert (done.model - reference.model).abs().max() < 1e-4 * change


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_motley_trains_what_the_bare_loop_trains(executor: str) -> None:
    workload = Workload(PLAN)  # on real minibatches: both draw the same
    same_work(motley(workload, executor), workload)


def test_a_rehearsal_comes_before_the_same_rounds() -> None:
    plan = replace(PLAN, rehearsal=3)
    workload = Workload(plan)
    assert list(workload.cohorts) == [4, 5, 6]
    for executor in ("loop", "batched"):
        done = motley(workload, executor)
        assert done.steps == workload.wanted_steps
        assert len(done.seconds) == 2


@pytest.mark.parametrize(
    ("peer", "processes"), [(peers_pfl, 1), (peers_pfl, 2), (peers_flower, 1)], ids=["pfl", "pfl x2", "flower"]
)
def test_peers_train_what_the_bare_loop_trains(peer: ModuleType, processes: int) -> None:
    if not peer.installed():
        pytest.skip(f"{peer.NAME} is not installed")
    plan = replace(PLAN, alike=True)
    (done,) = peer.measure([plan], processes=processes)
    same_work(done, Workload(plan))


def test_a_plan_survives_the_way_to_another_process() -> None:
    import json

    assert Plan.of(json.loads(json.dumps(PLAN.content()))) == PLAN


def test_precision_is_set_and_put_back() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    for name, allowed in (("tf32", True), ("float32", False)):
        with precision(name):
            assert torch.backends.cuda.matmul.allow_tf32 is allowed
            assert torch.backends.cudnn.allow_tf32 is allowed
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
    with pytest.raises(InputError, match="tf32, float32"), precision("bf16"):
        pass


def fake(seconds: float, lost: int = 0) -> Callable[[Sequence[Plan]], list[Timing]]:
    """A contender that needs so long and leaves out some steps."""

    def measure(plans: Sequence[Plan]) -> list[Timing]:
        made = [Workload(plan) for plan in plans]
        return [Timing([seconds] * w.plan.rounds, w.wanted_steps - lost, w.net.initial() + 1) for w in made]

    return measure


def fails(plans: Sequence[Plan]) -> list[Timing]:
    raise TrainingError("It broke.")


def test_rows_and_picture(tmp_path: Path) -> None:
    who = [
        Contender("bare loop", lambda: True, fake(0.4)),
        Contender("motley batched", lambda: True, fake(0.1)),
        Contender("motley loop", lambda: True, fake(0.5)),
        Contender("quick", lambda: True, fake(0.2, lost=3)),
        Contender("absent", lambda: False, fails),
        Contender("broken", lambda: True, fails),
    ]
    told: list[str] = []
    rows = compare([PLAN], who, told.append)
    by_name = {row["framework"]: row for row in rows}
    assert list(rows[0]) == [*COLUMNS, *RATIOS]
    assert by_name["bare loop"]["ms_per_round"] == 400
    assert [by_name[name]["ratio_to_motley"] for name in ("bare loop", "motley batched", "motley loop")] == [4, 1, 5]
    assert by_name["motley batched"]["ratio_to_bare_loop"] == 0.25
    workload = Workload(PLAN)
    counted = sum(workload.steps(client) for number in (2, 3) for client in workload.cohorts[number])
    assert by_name["bare loop"]["client_steps_per_s"] == pytest.approx(counted / 0.8, rel=1e-3)
    assert by_name["quick"]["note"] == f"{workload.wanted_steps - 3} steps instead of {workload.wanted_steps}"
    assert by_name["absent"]["note"] == "not installed"
    assert by_name["absent"]["ms_per_round"] is None
    assert by_name["broken"]["note"] == "failed: It broke."
    assert any("400 ms" in line for line in told)
    assert draw(rows, tmp_path / "deep" / "peers.png").stat().st_size > 5000


def test_check_sees_a_different_result() -> None:
    who = [*contenders(["batched"], [], 1), Contender("wrong", lambda: True, fake(0.1))]
    rows = {row["framework"]: row for row in check([PLAN], who)}
    assert rows["motley batched"]["difference"] < 1e-4
    assert rows["motley batched"]["steps"] == rows["motley batched"]["steps_wanted"]
    assert rows["wrong"]["difference"] > 1


def test_contenders_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [one.name for one in contenders(["batched"], ["pfl", "flower"], 3)]
    assert names == ["bare loop", "motley batched", "pfl", "pfl x3", "flower x3"]
    with pytest.raises(InputError, match="no peer 'fedml'"):
        contenders(["batched"], ["fedml"])
    for peer in peers.PEERS.values():
        monkeypatch.setattr(peer, "find_spec", lambda name: None)
        assert not peer.installed()


def test_a_peer_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(TrainingError, match="not done after 0 seconds"):
        peers_process.run("motley.bench.peers_pfl", [PLAN], limit=0.0)


def test_what_a_peer_had_done_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that carries out its first plan and fails at the second."""
    (tmp_path / "half.py").write_text(
        "import torch\nfrom motley.bench.workloads import Timing\n"
        "def train(workload):\n"
        "    assert workload.plan.rounds == 2, 'no more than two rounds'\n"
        "    return Timing([0.25, 0.5], 7, torch.ones(3))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    plans = [PLAN, replace(PLAN, case=replace(TINY, name="other"), rounds=3)]
    with pytest.raises(peers_process.UnfinishedError, match="no more than two rounds") as caught:
        peers_process.run("half", plans)
    first, second = caught.value.timings
    assert first is not None
    assert (first.seconds, first.steps, second) == ([0.25, 0.5], 7, None)
    one = peers.Contender("half", lambda: True, lambda plans: peers_process.run("half", plans))
    entries = peers.carry_out(plans, [one])
    assert [entry.timing is None for entry in entries] == [False, True]
    assert entries[0].note == ""
    assert "no more than two rounds" in entries[1].note


def test_what_a_process_says_last_is_told() -> None:
    with pytest.raises(TrainingError, match=r"No module named 'motley\.bench\.nobody'"):
        peers_process.run("motley.bench.nobody", [PLAN])
