"""Whole runs of late and asynchronous methods against slow ones: every merged model again, in plain loops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from motley.core.part import Part, compose
from motley.core.tasks import Event
from motley.core.types import Round, Tree, Updates
from motley.methods import make_method
from motley.runtime.experiment import Given, prepare
from motley.runtime.launch import Result, Run
from motley.runtime.listeners import Listener
from motley.runtime.recipe import load
from motley.runtime.records import Record
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


@dataclass(frozen=True)
class Row:
    """One update."""

    client: int
    round: int
    model: Vector
    delta: Vector
    trained: list[float]
    n: float
    duration: float


def rows(updates: Updates) -> list[Row]:
    columns = (updates.ids, updates.round, updates.models, updates.delta, updates.trained, updates.n, updates.duration)
    return [
        Row(int(client), int(number), vector(model), vector(delta), trained.tolist(), float(n), float(duration))
        for client, number, model, delta, trained, n, duration in zip(*columns, strict=True)
    ]


def vector(tensor: Tensor) -> Vector:
    return np.array(tensor.double().tolist())


@dataclass
class Seen:
    """What came to pass in one round."""

    number: int
    before: Vector
    came: list[Row] = field(default_factory=list)  # what parts were shown
    merged: list[Row] = field(default_factory=list)
    after: Vector | None = None
    failed: set[int] = field(default_factory=set)  # lost or given up before the merging
    failed_later: set[int] = field(default_factory=set)

    @property
    def aside(self) -> list[Row]:
        """Came, and was not picked."""
        picked = {(one.client, one.round) for one in self.merged}
        return [one for one in self.came if (one.client, one.round) not in picked]


class Watch(Listener):
    """Sees what comes to pass: as a part what comes and what is merged, as a listener the models between rounds."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.part = Part(name="watch", seam="step", observe=self._observe, step=self._step)

    def begun(self, run: Run) -> None:
        self.seen = [Seen(1, vector(run.fed.weights.value))]
        run.fed.ledger.book.events = self._happened

    def round_ended(self, run: Run, record: Record) -> None:
        assert self.seen[-1].number == record.round
        self.seen[-1].after = vector(run.fed.weights.value)
        self.seen.append(Seen(record.round + 1, vector(run.fed.weights.value)))

    def finished(self, run: Run, result: Result) -> None:
        self.seen.pop()  # of a round that never came
        assert len(self.seen) == run.recipe.rounds

    def _observe(self, s: Tree, rnd: Round, updates: Updates) -> Tree:
        assert rnd.number == self.seen[-1].number
        self.seen[-1].came += rows(updates)
        return s

    def _step(self, s: Tree, rnd: Round, old: Tensor, new: Tensor, updates: Updates) -> tuple[Tensor, Tree]:
        self.seen[-1].merged = rows(updates)
        return new, s

    def _happened(self, event: Event) -> None:
        here = self.seen[-1]
        if event.what in ("lose", "give up"):
            (here.failed_later if here.merged else here.failed).add(event.client)


def world(method: str, **changes: Any) -> tuple[Run, list[Seen]]:
    """A run that was made, and what came to pass in its rounds."""
    watch = Watch()
    composed = compose(make_method(method), watch.part)
    run = Run(prepare(load("digits", {**WORLD, **changes}), Given(method=composed)), None, [watch])
    run.go()
    return run, watch.seen


def chosen(fates: Chosen, **recipe: Any) -> tuple[Run, list[Seen]]:
    """The same for SAFA in a world whose times are chosen by hand."""
    watch = Watch()
    parts = (cached_models(), watch.part)
    run = run_of(fleet_of(fates), "semi_asynchronous", *parts, listeners=[watch], options={"lag": 1}, **recipe)
    run.go()
    return run, watch.seen


def age_discount(here: Seen, one: Row) -> float:
    return float((here.number - one.round + 1) ** -0.5)


def test_fedasync_mixes_each_model_in_turn() -> None:
    run, seen = world("fedasync(alpha=0.5, concurrency=5)")
    assert len({age for record in run.records for age in record.staleness}) > 2
    for here in seen:
        w = here.before
        for one in here.merged:
            rate = 0.5 * age_discount(here, one)
            w = (1 - rate) * w + rate * one.model
        np.testing.assert_allclose(here.after, w, atol=1e-5)


def test_fedbuff_adds_the_mean_of_discounted_changes() -> None:
    run, seen = world("fedbuff(buffer=3, concurrency=6, lr=0.7)")
    assert any(age > 0 for record in run.records for age in record.staleness)
    for here in seen:
        total = sum(age_discount(here, one) * one.delta for one in here.merged)
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
                cache[one.client] = one.model
            expected = sum(n * model for n, model in zip(sizes, cache, strict=True)) / sizes.sum()
            np.testing.assert_allclose(here.after, expected, atol=1e-5)
            waiting = set()
        else:
            waiting = failed - {one.client for one in here.aside}
        for one in here.aside:
            cache[one.client] = one.model
    return both


@pytest.mark.parametrize("lag", [1, 3])
def test_safa_averages_its_cache(lag: int) -> None:
    run, seen = world(f"safa(lag={lag})", cohort=2)
    check_safa(run, seen)
    assert any(here.aside for here in seen)
    assert any(here.failed for here in seen)


def test_safa_keeps_what_a_client_sends_in_the_round_in_which_it_was_called_back() -> None:
    """Client 1 is held up, called back in round 3, trains again at once and is merged in the same round."""
    fates = Chosen((1.0, 1.0, 1.0), held=((1, 1, 5),))
    assert check_safa(*chosen(fates, rounds=5)) == 1


def test_safa_carries_failures_over_a_round_without_a_merging() -> None:
    """Everybody is lost in round 2: in round 3 client 0 counts with the global model, for it is lost again."""
    fates = Chosen((1.0, 1.0), lost=frozenset({(0, 2), (1, 2), (0, 3)}))
    run, seen = chosen(fates, rounds=4)
    assert not seen[1].merged
    check_safa(run, seen)


def test_fedat_weighs_tiers_by_the_mergings_of_the_others() -> None:
    run, seen = world("fedat(tiers=3)", cohort=2)
    order = sorted(range(9), key=lambda client: (run.fed.profile[client], client))
    tier_of = {client: place // 3 for place, client in enumerate(order)}
    models, times = [seen[0].before] * 3, [0, 0, 0]
    for here in seen:
        if not here.merged:
            continue
        (tier,) = {tier_of[one.client] for one in here.merged}
        total = sum(one.n for one in here.merged)
        models[tier] = sum(one.n / total * one.model for one in here.merged)
        times[tier] += 1
        expected = sum(times[2 - m] / sum(times) * models[m] for m in range(3))
        np.testing.assert_allclose(here.after, expected, atol=1e-5)
    assert min(times) > 0


def test_freezefl_averages_layers_over_those_who_sent_them_and_moves_the_deadline() -> None:
    run, seen = world("freezefl(beta=4, ema=0.3, restart=3)", fleet="freezefl", epochs=3, rounds=8)
    layers = run.experiment.net.layout.layers
    deadline, some = None, 0
    for here in seen:
        expected = here.before.copy()
        for number, layer in enumerate(layers):
            senders = [one for one in here.merged if one.trained[number] > 0]
            some += 0 < len(senders) < len(here.merged)
            total = sum(one.n for one in senders)
            part = slice(layer.start, layer.stop)
            if senders:
                expected[part] = sum(one.n / total * one.model[part] for one in senders)
        np.testing.assert_allclose(here.after, expected, atol=1e-5)
        mean = sum(one.duration for one in here.merged) / len(here.merged)
        deadline = mean if deadline is None else 0.3 * deadline + 0.7 * mean
    assert some, "somebody froze a layer that others trained"
    assert float(run.fed.ledger.server.state["freeze_prefix"]["deadline"]) == pytest.approx(deadline, rel=1e-5)
