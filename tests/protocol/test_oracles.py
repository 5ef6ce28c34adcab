"""Whole runs of late and asynchronous methods against slow ones: every merged model again, in plain loops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from motley.protocol.federation import Arrival
from motley.run.experiment import prepare
from motley.run.recipe import load
from motley.run.runner import Run
from motley.server.staleness import cached_models
from tests.protocol.world import Chosen, fleet_of, run_of

Vector = NDArray[np.float64]

WORLD: dict[str, Any] = {
    "fleet": "uniform_spread(ratio=5)+loss(probability=0.1)+delay(probability=0.4, maximum_rounds=3)",
    "clients": 9,
    "cohort": 4,
    "rounds": 14,
    "model": "mlp(hidden=[6])",
    "lr": 0.1,
    "batch_size": 32,
}


@dataclass
class Seen:
    """What came to pass in one round."""

    number: int
    before: Vector
    merged: list[Arrival] = field(default_factory=list)
    after: Vector | None = None
    aside: list[Arrival] = field(default_factory=list)  # came, and was not picked
    failed: set[int] = field(default_factory=set)  # lost or given up before the merging
    failed_later: set[int] = field(default_factory=set)


def vector(tensor: Any) -> Vector:
    return np.array(tensor.double().tolist())


def model_of(arrival: Arrival) -> Vector:
    return vector(arrival.start.value) + vector(arrival.delta)


def world(method: str, **changes: Any) -> Run:
    return Run(prepare(load("digits", {**WORLD, **changes, "method": method})), None)


def watched(run: Run) -> list[Seen]:
    """Makes the run; gives what came to pass in its rounds."""
    fed = run.fed
    seen: list[Seen] = []
    aggregate, observe, end = fed.aggregate, fed.observe, fed._end

    def of(number: int) -> Seen:
        if not seen or seen[-1].number != number:
            seen.append(Seen(number, vector(fed.weights.value)))
        return seen[-1]

    def spy_aggregate(rnd: Any, arrivals: Any, **rest: Any) -> None:
        here = of(rnd.number)
        here.merged = list(arrivals)
        aggregate(rnd, arrivals, **rest)
        here.after = vector(fed.weights.value)

    def spy_observe(rnd: Any, arrivals: Any) -> Any:
        of(rnd.number).aside += list(arrivals)
        return observe(rnd, arrivals)

    def spy_end(flight: Any, arrived: bool) -> None:
        here = of(fed.round)
        if not arrived:
            (here.failed if here.after is None else here.failed_later).add(flight.client)
        end(flight, arrived)

    fed.aggregate, fed.observe, fed._end = spy_aggregate, spy_observe, spy_end  # type: ignore[method-assign]
    run.go()
    assert len(seen) == run.recipe.rounds
    return seen


def age_discount(here: Seen, arrival: Arrival) -> float:
    return float((here.number - arrival.round + 1) ** -0.5)


def test_fedasync_mixes_each_model_in_turn() -> None:
    run = world("fedasync(alpha=0.5, concurrency=5)")
    seen = watched(run)
    assert len({age for record in run.records for age in record.staleness}) > 2
    for here in seen:
        w = here.before
        for arrival in here.merged:
            rate = 0.5 * age_discount(here, arrival)
            w = (1 - rate) * w + rate * model_of(arrival)
        np.testing.assert_allclose(here.after, w, atol=1e-5)


def test_fedbuff_adds_the_mean_of_discounted_changes() -> None:
    run = world("fedbuff(buffer=3, concurrency=6, lr=0.7)")
    seen = watched(run)
    assert any(age > 0 for record in run.records for age in record.staleness)
    for here in seen:
        total = sum(age_discount(here, one) * vector(one.delta) for one in here.merged)
        expected = here.before + 0.7 / len(here.merged) * total if here.merged else here.before
        np.testing.assert_allclose(here.after, expected, atol=1e-5)


def check_safa(run: Run, seen: list[Seen]) -> int:
    """Before a merging the cache takes the global model for who failed and the picked models, after it the others.

    Says how many failed and were picked in one round.
    """
    sizes = run.experiment.data.sizes.astype(float)
    cache = [seen[0].before for _ in sizes]
    waiting: set[int] = set()  # failures of rounds without a merging
    both = 0
    for here in seen:
        failed = waiting | here.failed
        if here.merged:
            picked = {one.client for one in here.merged}
            both += len(picked & failed)
            for client in failed - picked:
                cache[client] = here.before
            for one in here.merged:
                cache[one.client] = model_of(one)
            expected = sum(n * model for n, model in zip(sizes, cache, strict=True)) / sizes.sum()
            np.testing.assert_allclose(here.after, expected, atol=1e-5)
            waiting = set()
        else:
            waiting = failed - {one.client for one in here.aside}
        for one in here.aside:
            cache[one.client] = model_of(one)
    return both


@pytest.mark.parametrize("lag", [1, 3])
def test_safa_averages_its_cache(lag: int) -> None:
    run = world(f"safa(lag={lag})", cohort=2)
    seen = watched(run)
    check_safa(run, seen)
    assert any(here.aside for here in seen)
    assert any(here.failed for here in seen)


def test_safa_keeps_what_a_client_sends_in_the_round_in_which_it_was_called_back() -> None:
    """Client 1 is held up, called back in round 3, trains again at once and is merged in the same round."""
    fates = Chosen((1.0, 1.0, 1.0), held=((1, 1, 5),))
    run = run_of(fleet_of(fates), "semi_asynchronous", cached_models(), rounds=5, options={"lag": 1})
    assert check_safa(run, watched(run)) == 1


def test_safa_carries_failures_over_a_round_without_a_merging() -> None:
    """Everybody is lost in round 2: in round 3 client 0 counts with the global model, for it is lost again."""
    fates = Chosen((1.0, 1.0), lost=frozenset({(0, 2), (1, 2), (0, 3)}))
    run = run_of(fleet_of(fates), "semi_asynchronous", cached_models(), rounds=4, options={"lag": 1})
    seen = watched(run)
    assert not seen[1].merged
    check_safa(run, seen)


def test_fedat_weighs_tiers_by_the_mergings_of_the_others() -> None:
    run = world("fedat(tiers=3)", cohort=2)
    seen = watched(run)
    order = sorted(range(9), key=lambda client: (run.fed.profile[client], client))
    tier_of = {client: place // 3 for place, client in enumerate(order)}
    models, times = [seen[0].before] * 3, [0, 0, 0]
    for here in seen:
        if not here.merged:
            continue
        (tier,) = {tier_of[one.client] for one in here.merged}
        total = sum(one.n for one in here.merged)
        models[tier] = sum(one.n / total * model_of(one) for one in here.merged)
        times[tier] += 1
        expected = sum(times[2 - m] / sum(times) * models[m] for m in range(3))
        np.testing.assert_allclose(here.after, expected, atol=1e-5)
    assert min(times) > 0


def test_freezefl_averages_layers_over_those_who_sent_them_and_moves_the_deadline() -> None:
    run = world("freezefl(beta=4, ema=0.3, restart=3)", fleet="freezefl", epochs=3, rounds=8)
    seen = watched(run)
    layers = run.experiment.net.layout.layers
    deadline, some = None, 0
    for here in seen:
        expected = here.before.copy()
        for number, layer in enumerate(layers):
            senders = [one for one in here.merged if float(one.trained[number]) > 0]
            some += 0 < len(senders) < len(here.merged)
            total = sum(one.n for one in senders)
            part = slice(layer.start, layer.stop)
            if senders:
                expected[part] = sum(one.n / total * model_of(one)[part] for one in senders)
        np.testing.assert_allclose(here.after, expected, atol=1e-5)
        mean = sum(one.duration for one in here.merged) / len(here.merged)
        deadline = mean if deadline is None else 0.3 * deadline + 0.7 * mean
    assert some, "somebody froze a layer that others trained"
    assert float(run.fed.server.state["freeze_prefix"]["deadline"]) == pytest.approx(deadline, rel=1e-5)
