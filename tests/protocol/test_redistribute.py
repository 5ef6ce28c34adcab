"""The redistribute protocol: walking models, lost clients, too few clients, batches, bytes, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from motley.client.site import Site
from motley.core.errors import InputError, TrainingError
from motley.core.keys import Key
from motley.core.part import Part, compose
from motley.core.tasks import Assignment
from motley.core.types import Client
from motley.engine.batched.cpu import CpuLane
from motley.engine.batched.group import Group
from motley.engine.batched.together import Batched
from motley.fleet.fleet import Fates, Fleet
from motley.methods import make_method
from motley.runtime.experiment import Experiment, Given, prepare
from motley.runtime.launch import Result, Run, executor_of, launch, resume, run
from motley.runtime.recipe import Recipe, load
from tests import tiny
from tests.protocol.world import events_of

SMALL: dict[str, Any] = {
    "clients": 12,
    "cohort": 4,
    "rounds": 6,
    "epochs": 1.0,
    "model": "mlp(hidden=[16])",
    "executor": "loop",
    "checkpoint_seconds": 0.0,
}


def recipe(**changes: Any) -> Recipe:
    return load("digits", {**SMALL, **changes})


class Unlucky(Fleet):
    """A fleet in which chosen (client, round) pairs lose their update and chosen clients are away in some rounds."""

    def fates(self, clients: Any, round_index: int) -> Fates:
        lost = np.array([(int(client), round_index) in LOST for client in clients])
        return Fates.kind(len(lost))._replace(lost=lost)

    def present(self, round_index: int, now: float) -> Any:
        here = super().present(round_index, now)
        here[AWAY.get(round_index, 0) :] = AWAY.get(round_index) is None
        return here


LOST: set[tuple[int, int]] = set()
AWAY: dict[int, int] = {}


@pytest.fixture(autouse=True)
def _kind_world() -> None:
    LOST.clear()
    AWAY.clear()


def unlucky(changed: Recipe) -> Run:
    fleet = Unlucky(**vars(Fleet.ideal(changed.clients or 0, Key.root(0))))
    return Run(prepare(changed, Given(fleet=fleet)))


def trained(e: Experiment) -> list[list[Assignment]]:
    """What was trained together, in order."""
    executor = tiny.Watched(executor_of(e))
    Run(e, executor=executor).go()
    return executor.batches


def same(a: Result, b: Result) -> bool:
    return a.summary["model_sha256"] == b.summary["model_sha256"]


def test_one_redistribution_is_fedavg_with_uniform_weights() -> None:
    walked = run(recipe(method="radfed(S=1)"))
    averaged = run(recipe(method="fedavg(weighted=False)"))
    assert same(walked, averaged)
    assert not same(walked, run(recipe(method="fedavg")))


def test_communication_and_local_training_equal_fedavg() -> None:
    walked = run(recipe(method="radfed(S=3)"))
    averaged = run(recipe(method="fedavg"))
    for key in ("bytes_up", "bytes_down", "rounds"):
        assert walked.summary[key] == averaged.summary[key]
    counts = [[(r.participants, r.arrived, r.bytes_up, r.bytes_down) for r in x.records] for x in (walked, averaged)]
    assert counts[0] == counts[1]
    size = walked.params.numel() * 4
    assert walked.summary["bytes_up"] == 6 * 4 * size


def test_walking_models_are_one_batch() -> None:
    batches = trained(prepare(recipe(method="radfed(S=3)")))
    assert [len(batch) for batch in batches] == [4] * 6
    distinct = [len({tuple(task.start.value[:50].tolist()) for task in batch}) for batch in batches]
    assert distinct == [1, 4, 4, 1, 4, 4]  # all start alike after an average, and apart within a walk


def test_what_is_handed_on_went_over_the_wire() -> None:
    """With an encoder that doubles every change, the next client starts from the doubled one."""
    doubled = Part(name="doubled", seam="protect", encode=lambda c, me, payload: 2 * payload)
    plain = make_method("radfed(S=2)")
    base = recipe(rounds=2)
    batches = [
        batch for method in (plain, compose(plain, doubled)) for batch in trained(prepare(base, Given(method=method)))
    ]
    first, hop, _, doubled_hop = [torch.stack([task.start.value for task in batch]) for batch in batches]
    torch.testing.assert_close((doubled_hop - first).sum(0), 2 * (hop - first).sum(0), rtol=1e-4, atol=1e-6)


def test_a_lost_client_leaves_its_model_as_it_was() -> None:
    base = recipe(method="radfed(S=2)", rounds=2)
    made = unlucky(base)
    events = events_of(made)
    whole = made.go()
    sent = [event for event in events if event.what == "dispatch"]
    second = [event.client for event in sent if event.round == 1][1]
    LOST.add((second, 1))
    result = unlucky(base).go()
    assert [record.lost for record in result.records] == [1, 0]
    assert result.records[0].extra["hops"] == [1, 0, 1, 1]
    assert sorted(result.records[1].extra["hops"]) == [1, 2, 2, 2]
    assert not same(whole, result)


def test_nobody_comes_through() -> None:
    """The model stays as it was; a whole run of this kind ends with a sentence."""
    LOST.update((client, number) for client in range(12) for number in (1, 2))
    base = recipe(method="radfed(S=2)", rounds=2)
    made, lost = unlucky(base), []
    made.bare_rounds(lambda rnd, tally: lost.append(tally.lost))
    assert lost == [4, 4]
    assert torch.equal(made.model, prepare(base).net.initial())
    with pytest.raises(TrainingError, match=r"In 2 rounds not one update reached the server \(8 lost, 0 too late\)"):
        unlucky(base).go()


def test_too_few_clients_balanced() -> None:
    AWAY.update({2: 2, 3: 3})
    result = unlucky(recipe(method="radfed(S=4)", rounds=4)).go()
    hops = [record.extra["hops"] for record in result.records]
    assert [sum(h) for h in hops] == [4, 6, 9, 13]
    assert all(max(h) - min(h) <= 1 for h in hops)


def test_too_few_clients_fewer_models() -> None:
    AWAY.update({2: 2})
    result = unlucky(recipe(method="radfed(S=3, unequal='fewer')", rounds=4)).go()
    assert [record.extra["hops"] for record in result.records] == [[1] * 4, [2] * 2, [3] * 2, [1] * 4]


def test_nobody_there() -> None:
    for unequal in ("balanced", "fewer"):
        AWAY.update({1: 0, 2: 0})
        result = unlucky(recipe(method=f"radfed(S=2, unequal='{unequal}')", rounds=4)).go()
        assert [sum(record.extra["hops"]) for record in result.records] == [0, 0, 4, 8]


def test_bad_settings_get_a_sentence() -> None:
    with pytest.raises(InputError, match="'radfed' has S=0; it must be a whole number of at least 1"):
        make_method("radfed(S=0)")
    with pytest.raises(InputError, match="unequal='both'; it must be one of 'balanced', 'fewer', 'stop'"):
        make_method("radfed(unequal='both')")
    with pytest.raises(InputError, match=r"13 models cannot walk over 12 clients.*cohort=12 or less"):
        run(recipe(method="radfed", cohort=13))
    with pytest.raises(InputError, match=r"no option 'T'; its options are: S, unequal, show"):
        run(recipe(method="radfed", options={"T": 3}))
    with pytest.raises(InputError, match="'redistribute' has S=0; it must be a whole number of at least 1"):
        run(recipe(method="radfed", options={"S": 0}))
    AWAY.update({2: 3})
    with pytest.raises(InputError, match="4 models walk, but only 3 clients are active in round 2"):
        unlucky(recipe(method="radfed(unequal='stop')")).go()


def test_shown_between_averages() -> None:
    walked = run(recipe(method="radfed(S=3)", rounds=6))
    still = run(recipe(method="radfed(S=3)", rounds=6, options={"show": "global"}))
    assert same(walked, still)
    scores = [[record.accuracy for record in result.records] for result in (walked, still)]
    assert scores[0][2::3] == scores[1][2::3]
    assert len(set(scores[1][:2])) == 1
    assert scores[0][:2] != scores[1][:2]
    cut = run(recipe(method="radfed(S=3)", rounds=5))  # the last, shorter walk counts as well
    assert cut.accuracy == scores[0][4]


@pytest.mark.parametrize("method", ["radfed(S=4)", "radfeda(S=4)", "radfedi(S=4)+scaffold", "radfed(S=4)+heterofl"])
def test_resume_in_the_middle_of_a_walk(method: str, tmp_path: Path) -> None:
    whole = run(recipe(method=method, rounds=7))
    launch(recipe(method=method, rounds=3), tmp_path / "cut")
    continued = resume(tmp_path / "cut", changes=["rounds=7"])
    assert same(whole, continued)
    assert [r.accuracy for r in whole.records] == [r.accuracy for r in continued.records]


def test_resume_after_a_loss(tmp_path: Path) -> None:
    """A model that nobody has trained yet survives a checkpoint too."""
    base = recipe(method="radfed(S=3)", rounds=3)
    LOST.update((client, 1) for client in range(0, 12, 2))
    fleet = Unlucky(**vars(Fleet.ideal(12, Key.root(0))))
    whole = launch(base, given=Given(fleet=fleet))
    folder = tmp_path / "run"
    launch(load(base, {"rounds": 1}), folder, given=Given(fleet=fleet))
    made = Run(prepare(base, Given(fleet=fleet)), folder)
    made.take_up()
    assert same(whole, made.go())


COMBINED = [
    "radfed(S=2)+scaffold",
    "radfed(S=2)+feddyn",
    "radfedp+radfedm+radfedi(S=2)",
    "radfed(S=2)+relaxed_balanced_softmax(eps=0.1)",
    "radfed(S=2)+rebafl",
    "radfed(S=2)+fedbabu",
    "radfed(S=2)+ama",
    "radfed(S=2)+fedsae_ira",
    "radfed(S=2)+freezefl",
]


@pytest.mark.parametrize("method", COMBINED)
def test_combines(method: str) -> None:
    result = run(recipe(method=method, rounds=4))
    assert result.summary["rounds"] == 4
    assert torch.isfinite(result.params).all()
    assert not same(result, run(recipe(method="radfed(S=2)", rounds=4)))


def test_every_hop_counts_for_fairness() -> None:
    """Nothing is lost, so as many updates were taken of each client as it was given tasks."""
    fairness = run(recipe(method="radfed(S=3)", rounds=7)).summary["fairness"]
    assert fairness["jain_merged"] == fairness["jain_chosen"]


class WatchedLane(CpuLane):
    """Notes how many clients run as one computation."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.widths: list[int] = []

    def train(self, group: Group, c: Client) -> Client:
        self.widths.append(sum(steps > 0 for steps in group.counts[: len(group.tasks)]))
        return super().train(group, c)


def test_walking_models_are_one_batch_of_the_executor() -> None:
    """All m models of a redistribution go through the batched executor together, each from where it stands."""
    e = prepare(recipe(method="radfed(S=3)", rounds=3))
    lane = WatchedLane(e.site)
    walked = Run(e, executor=Batched(e.site, lane=lane)).go()
    assert lane.widths == [4, 4, 4]
    assert torch.allclose(walked.params, run(recipe(method="radfed(S=3)", rounds=3)).params, atol=1e-5)
