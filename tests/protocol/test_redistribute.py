"""The redistribute protocol: walking models, lost clients, too few clients, batches, bytes, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from motley.core.errors import InputError
from motley.core.keys import Key
from motley.fleet.fleet import Fates, Fleet
from motley.methods import make_method
from motley.run.executors.batched import Batched
from motley.run.experiment import prepare
from motley.run.recipe import Recipe, load
from motley.run.runner import Result, Run, resume, run, start

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
    return Run(prepare(changed, fleet=fleet), None)


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
    made = Run(prepare(recipe(method="radfed(S=3)")), None)
    batches: list[list[torch.Tensor]] = []
    train = made.executor.run

    def counted(jobs: Any) -> Any:
        batches.append([job.start for job in jobs])
        return train(jobs)

    made.executor.run = counted  # type: ignore[method-assign]
    made.go()
    assert [len(batch) for batch in batches] == [4] * 6
    distinct = [len({tuple(start[:50].tolist()) for start in batch}) for batch in batches]
    assert distinct == [1, 4, 4, 1, 4, 4]  # all start alike after an average, and apart within a walk


def test_what_is_handed_on_went_over_the_wire() -> None:
    """With an encoder that doubles every change, the next client starts from the doubled one."""
    from motley.core.part import Part, compose

    doubled = Part(name="doubled", seam="protect", encode=lambda c, payload: 2 * payload)
    plain = make_method("radfed(S=2)")
    base = recipe(rounds=2)
    seen: list[list[torch.Tensor]] = []
    for method in (plain, compose(plain, doubled)):
        made = Run(prepare(base, method=method), None)
        train = made.executor.run

        def watched(jobs: Any, train: Any = train) -> Any:
            seen.append([job.start for job in jobs])
            return train(jobs)

        made.executor.run = watched  # type: ignore[method-assign]
        made.go()
    first, hop, _, doubled_hop = seen
    change = torch.stack(hop) - torch.stack(first)
    twice = torch.stack(doubled_hop) - torch.stack(first)
    torch.testing.assert_close(twice.sum(0), 2 * change.sum(0), rtol=1e-4, atol=1e-6)


def test_a_lost_client_leaves_its_model_as_it_was() -> None:
    base = recipe(method="radfed(S=2)", rounds=2)
    made = unlucky(base)
    chosen = made.fed.server.select
    cohorts: list[list[int]] = []

    def spied(*args: Any) -> list[int]:
        cohorts.append(chosen(*args))
        return cohorts[-1]

    made.fed.server.select = spied  # type: ignore[method-assign]
    whole = made.go()
    LOST.add((cohorts[0][1], 1))
    result = unlucky(base).go()
    assert [record.lost for record in result.records] == [1, 0]
    assert result.records[0].extra["hops"] == [1, 0, 1, 1]
    assert sorted(result.records[1].extra["hops"]) == [1, 2, 2, 2]
    assert not same(whole, result)
    LOST.update((client, number) for number, cohort in enumerate(cohorts, 1) for client in cohort)
    nothing = unlucky(base).go()
    torch.testing.assert_close(nothing.params, prepare(base).net.initial())
    assert [record.lost for record in nothing.records] == [4, 4]


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
    with pytest.raises(InputError, match="S, the number of redistributions, is 0; it must be a whole number from 1"):
        make_method("radfed(S=0)")
    with pytest.raises(InputError, match="must be 'balanced', 'fewer' or 'stop'"):
        make_method("radfed(unequal='both')")
    with pytest.raises(InputError, match=r"13 models cannot walk over 12 clients.*cohort=12 or less"):
        run(recipe(method="radfed", cohort=13))
    with pytest.raises(InputError, match=r"no option 'T'; its options are: S, unequal, show"):
        run(recipe(method="radfed", options={"T": 3}))
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
    start(recipe(method=method, rounds=3), tmp_path / "cut")
    continued = resume(tmp_path / "cut", changes=["rounds=7"])
    assert same(whole, continued)
    assert [r.accuracy for r in whole.records] == [r.accuracy for r in continued.records]


def test_resume_after_a_loss(tmp_path: Path) -> None:
    """A model that nobody has trained yet survives a checkpoint too."""
    base = recipe(method="radfed(S=3)", rounds=3)
    LOST.update((client, 1) for client in range(0, 12, 2))
    fleet = Unlucky(**vars(Fleet.ideal(12, Key.root(0))))
    whole = Run(prepare(base, fleet=fleet), None).go()
    folder = tmp_path / "run"
    start(load(base, {"rounds": 1}), folder, fleet=fleet)
    made = Run(prepare(base, fleet=fleet), folder)
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


def test_walking_models_are_one_batch_of_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """All m models of a redistribution go through the batched executor together, each from where it stands."""
    together: list[int] = []
    whole = Batched._run_group

    def spied(self: Batched, group: Any) -> Any:
        together.append(sum(job.steps > 0 for job in group.jobs))
        return whole(self, group)

    monkeypatch.setattr(Batched, "_run_group", spied)
    walked = run(recipe(method="radfed(S=3)", rounds=3, executor="batched", device="cpu", workers=1))
    assert together == [4, 4, 4]
    assert torch.allclose(walked.params, run(recipe(method="radfed(S=3)", rounds=3)).params, atol=1e-5)
