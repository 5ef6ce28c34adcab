"""FedSAE: every branch of both predictions, and whole rounds against a plain loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from motley.core.errors import InputError
from motley.fleet.fleet import Fates
from motley.runtime.experiment import prepare
from motley.runtime.launch import Run
from motley.runtime.launch import run as run_recipe
from motley.runtime.recipe import load
from motley.server.fedsae import (
    Workload,
    fast_then_slow,
    inverse_ratio,
    workload_by_inverse_ratio,
    workload_by_threshold,
)
from tests.protocol.world import Chosen, fleet_of, run_of

NOW = Workload(4.0, 6.0)


def test_ira_in_every_branch() -> None:
    assert inverse_ratio(NOW, 6.0, 3.0) == pytest.approx((4.75, 6.5))  # all of it: L + U/L, H + U/H
    assert inverse_ratio(NOW, 4.0, 3.0) == pytest.approx((3.0, 4.75))  # L came: min and max of L + U/L and H/2
    assert inverse_ratio(Workload(1.0, 6.0), 1.0, 1.0) == pytest.approx((2.0, 3.0))  # H/2 is the larger one
    assert inverse_ratio(NOW, 0.0, 3.0) == pytest.approx((2.0, 3.0))  # nothing: halves
    assert inverse_ratio(Workload(1.0, 2.0), 2.0, 10.0) == pytest.approx((7.0, 11.0))  # L <= H always


@pytest.mark.parametrize(
    ("done", "threshold", "expected"),
    [
        (6.0, 4.0, (5.0, 7.0)),  # theta <= L: both slowly
        (6.0, 5.0, (7.0, 7.0)),  # L < theta <= H: L fast, H slowly
        (6.0, 6.0, (7.0, 7.0)),
        (6.0, 6.5, (7.0, 9.0)),  # theta > H: both fast
        (4.0, 4.0, (3.0, 5.0)),  # L came, theta <= L: L + gamma2 and H/2
        (4.0, 5.0, (3.0, 7.0)),  # L < theta <= H: L + gamma1 and H/2
        (4.0, 9.0, (3.0, 7.0)),  # theta > H: likewise
        (0.0, 1.0, (2.0, 3.0)),  # nothing: halves, whatever theta is
        (0.0, 9.0, (2.0, 3.0)),
    ],
)
def test_fassa_in_every_branch(done: float, threshold: float, expected: tuple[float, float]) -> None:
    assert fast_then_slow(NOW, done, threshold, 3.0, 1.0) == pytest.approx(expected)


def test_ira_with_unlimited_clients_grows_as_the_formula_says() -> None:
    run = run_of(
        fleet_of(Chosen((1.0, 1.0))), "synchronous", workload_by_inverse_ratio(u=10.0), rounds=4, batch_size=16
    )
    run.go()
    now = Workload(1.0, 2.0)
    for _ in range(4):
        now = Workload(*sorted((now.easy + 10 / now.easy, now.hard + 10 / now.hard)))
    state = run.fed.ledger.server.state["workload_by_inverse_ratio"]
    assert state["easy"].tolist() == pytest.approx([now.easy] * 2, rel=1e-5)
    assert state["hard"].tolist() == pytest.approx([now.hard] * 2, rel=1e-5)
    assert run.records[-1].extra == {}


def test_fassa_over_rounds_against_a_plain_loop() -> None:
    can = {1: 9.0, 2: 2.5, 3: 0.5, 4: 9.0, 5: 9.0}
    fates = Chosen((1.0,), affordable=tuple((0, t, amount) for t, amount in can.items()))
    part = workload_by_threshold(alpha=0.5, fast=3.0, slow=1.0)
    run = run_of(fleet_of(fates), "synchronous", part, rounds=5, batch_size=64)
    run.go()
    easy, hard, theta = 1.0, 2.0, 0.0
    stragglers, dropouts = [], []
    for t in range(1, 6):
        if can[t] >= hard:
            done = hard
            up_easy, up_hard = (1.0, 1.0) if theta <= easy else (3.0, 1.0) if theta <= hard else (3.0, 3.0)
            pair = (easy + up_easy, hard + up_hard)
        elif can[t] >= easy:
            done = easy
            pair = (easy + (1.0 if theta <= easy else 3.0), hard / 2)
        else:
            done = 0.0
            pair = (easy / 2, hard / 2)
        stragglers.append(done < hard)
        dropouts.append(done == 0)
        theta = 0.5 * theta + 0.5 * done
        easy, hard = min(pair), max(pair)
    state = run.fed.ledger.server.state["workload_by_threshold"]
    found = [float(state[name][0]) for name in ("easy", "hard", "threshold")]
    assert found == pytest.approx([easy, hard, theta], rel=1e-5)
    assert [record.extra.get("stragglers", 0) for record in run.records] == stragglers
    assert [record.extra.get("dropouts", 0) for record in run.records] == dropouts
    assert sum(stragglers) == 2


def test_who_stops_between_the_two_sends_its_state_at_the_easy_one() -> None:
    """With 1.5 affordable epochs of (1, 2), the update is what one epoch gives."""
    fates = Chosen((1.0,), affordable=((0, 1, 1.5),))
    kept = run_of(fleet_of(fates), "synchronous", workload_by_inverse_ratio(), rounds=1, batch_size=64)
    one = run_of(fleet_of(Chosen((1.0,))), "synchronous", rounds=1, batch_size=64, epochs=1)
    kept.go()
    one.go()
    assert kept.fed.weights.value.equal(one.fed.weights.value)
    assert kept.records[0].extra == {"concluded": 1, "stragglers": 1, "dropouts": 0}


def test_workloads_never_fall_below_one_minibatch() -> None:
    fates = Chosen((1.0,), affordable=tuple((0, t, 0.0) for t in range(1, 30)))
    run = run_of(fleet_of(fates), "synchronous", workload_by_inverse_ratio(), rounds=12, batch_size=100)
    run.bare_rounds()
    n = int(run.experiment.data.sizes[0])
    state = run.fed.ledger.server.state["workload_by_inverse_ratio"]
    assert float(state["easy"][0]) == pytest.approx(1 / -(-n // 100))


class Noted:
    """The last layer of a fleet: notes what the others let each client afford."""

    def __init__(self) -> None:
        self.affordable: dict[tuple[int, int], float] = {}

    def __call__(self, clients: NDArray[np.int64], number: int, fates: Fates) -> Fates:
        for client, epochs in zip(clients, fates.affordable, strict=True):
            self.affordable[int(client), number] = float(epochs)
        return fates


@pytest.mark.parametrize("method", ["fedsae_ira", "fedsae_fassa", "fedprox(partial=false)"])
def test_what_a_client_affords_does_not_depend_on_the_method(method: str) -> None:
    """Of every task that two methods hand out to the same client in the same round, whatever they ask for."""

    def affordable(method: str) -> dict[tuple[int, int], float]:
        world = {"fleet": "fedsae", "clients": 8, "cohort": 8, "rounds": 6, "model": "logistic", "epochs": 15}
        e = prepare(load("digits", {**world, "method": method}))
        noted = Noted()
        e = replace(e, fleet=e.fleet.meets(fortune=noted))
        Run(e).bare_rounds()
        return noted.affordable

    assert affordable(method) == affordable("fedavg")


def test_methods_see_the_same_affordable_workloads_and_clients() -> None:
    world = {"fleet": "fedsae", "clients": 20, "cohort": 5, "rounds": 4, "model": "logistic"}
    average = run_recipe("digits", **world, method="fedavg", epochs=15)
    adaptive = run_recipe("digits", **world, method="fedsae_fassa")
    assert average.summary["stragglers_rate"] > 0.8
    assert adaptive.summary["stragglers_rate"] < 0.2
    assert average.summary["fairness"]["jain_chosen"] == adaptive.summary["fairness"]["jain_chosen"]


def test_wrong_first_workloads_are_refused() -> None:
    with pytest.raises(InputError, match="0 < easy <= hard"):
        workload_by_inverse_ratio(easy=3.0, hard=2.0)
    with pytest.raises(InputError, match="'done' or 'reached'"):
        workload_by_threshold(history="all")
