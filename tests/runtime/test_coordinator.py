"""The federation on the virtual clock: who trains when, what arrives when, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from motley.bench.agreement import tiny_experiment
from motley.core.keys import Key
from motley.core.part import PARTS, Method, Part, compose
from motley.core.tasks import Assignment, Event, Update
from motley.core.types import Round, Tree, Updates
from motley.fleet.fleet import Fate, Fleet
from motley.methods import make_method
from motley.nets.cost import flops
from motley.protocol.carrier import EMPTY_SECONDS
from motley.protocol.federation import PROTOCOLS, Federation
from motley.runtime.launch import Run, executor_of
from motley.runtime.virtual_carrier import VirtualCarrier
from tests import tiny
from tests.protocol.world import events_of

Trace = list[tuple[Any, ...]]


def watched(method: Method | None = None, **given: Any) -> tuple[Run, tiny.Watched]:
    """A run, and what is trained together in it."""
    e = tiny.experiment(method, **given)
    executor = tiny.Watched(executor_of(e))
    return Run(e, executor=executor), executor


@pytest.fixture
def protocol() -> Iterator[Any]:
    """Registers a protocol for one test: ``protocol(function) -> method``."""

    def register(function: Any) -> Method:
        PROTOCOLS.add("test", hidden=("fed",))(function)
        return compose(make_method("fedavg"), protocol="test", name="test")

    yield register
    PROTOCOLS.entries.pop("test", None)


def fleet_of(seconds: list[float], made: Any) -> Fleet:
    """Links without cost and devices that take exactly so many seconds for one epoch."""
    work = made.data.sizes * flops(made.cost)
    n = len(seconds)
    return Fleet.ideal(n, Key.root(0)).with_(
        flops=work / np.array(seconds), up=np.full(n, np.inf), down=np.full(n, np.inf)
    )


def delayed(seconds: list[float], *fortune: Any, **layers: Any) -> Fleet:
    """A fleet in which a task of client i takes exactly ``seconds[i]``."""
    at_once = np.full(6, np.inf)
    delay = tiny.Delay(dict(enumerate(seconds)))
    return Fleet.ideal(6, Key.root(0)).with_(
        flops=at_once, up=at_once, down=at_once, fortune=(delay, *fortune), **layers
    )


def with_seconds(seconds: list[float], method: Method | None = None, *fortune: Any, **given: Any) -> Run:
    """A run in which client i takes exactly ``seconds[i]``."""
    return Run(tiny.experiment(method, fleet=delayed(seconds, *fortune), **given))


def told(updates: Sequence[Update], fed: Federation) -> tuple[Any, ...]:
    return fed.now, [(one.client, one.round) for one in updates]


def pairs(batch: Sequence[Assignment]) -> list[tuple[int, int]]:
    return [(task.client, task.round) for task in batch]


class Came:
    """A part that notes every update as parts see it, by client and round, and what is merged into which model."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], dict[str, float]] = {}
        self.merged: list[tuple[torch.Tensor, Updates]] = []
        self.part = Part(name="came", seam="step", observe=self.observe, step=self.step)

    def observe(self, s: Tree, rnd: Round, updates: Updates) -> Tree:
        for k in range(len(updates)):
            numbers = {name: float(getattr(updates, name)[k]) for name in ("duration", "steps", "n")}
            self.rows[int(updates.ids[k]), int(updates.round[k])] = numbers
        return s

    def step(
        self, s: Tree, rnd: Round, old: torch.Tensor, new: torch.Tensor, updates: Updates
    ) -> tuple[torch.Tensor, Tree]:
        self.merged.append((old, updates))
        return new, s


def slow_links() -> Fleet:
    return Fleet.ideal(6, Key.root(0)).with_(
        flops=np.array([1e3, 2e3, 3e3, 4e3, 5e3, 6e3]),
        down=np.arange(1.0, 7.0) * 100,
        up=np.arange(1.0, 7.0) * 10,
        fortune=(tiny.Lost((1, 1)), tiny.Delay({client: 0.5 * client for client in range(6)})),
    )


def test_times_and_bytes_by_hand() -> None:
    """SCAFFOLD sends and receives a control variate as large as the model."""
    came = Came()
    e = tiny.experiment(compose(make_method("scaffold"), came.part), fleet=slow_links(), rounds=2, cohort=6, epochs=2.0)
    size, per_sample = e.net.size, flops(e.cost)
    result = Run(e).go()
    seconds = []
    for client in range(6):
        compute = 2.0 * tiny.SIZES[client] * per_sample / (1e3 * (client + 1))
        link = 8 * size / (100.0 * (client + 1)) + 8 * size / (10.0 * (client + 1))
        seconds.append(link + compute + 0.5 * client)
    for (client, _), row in came.rows.items():
        assert row["duration"] == pytest.approx(seconds[client])
        assert row["steps"] == 2 * math.ceil(tiny.SIZES[client] / 4)
        assert row["n"] == tiny.SIZES[client]
    assert set(came.rows) == {(client, t) for client in range(6) for t in (1, 2)} - {(1, 1)}
    first, second = result.records
    assert first.virtual_time == pytest.approx(max(seconds[:1] + seconds[2:]))
    assert (first.participants, first.arrived, first.lost, first.late) == (6, 5, 1, 0)
    assert (first.bytes_down, first.bytes_up) == (6 * 8 * size, 5 * 8 * size)
    assert (second.bytes_down, second.bytes_up, second.lost) == (6 * 8 * size, 6 * 8 * size, 0)
    assert result.summary["lost"] == 1


def test_a_device_that_stops_early_is_charged_for_what_it_did_and_sends_nothing() -> None:
    fleet = fleet_of([1.0, 8.0, 1.0, 1.0, 1.0, 1.0], tiny.experiment())
    run, executor = watched(fleet=fleet.with_(fortune=(tiny.Affordable({1: 0.5}),)), rounds=1, cohort=6, epochs=1.0)
    record = run.go().records[0]
    assert record.virtual_time == pytest.approx(4.0)
    assert (record.arrived, record.lost) == (5, 1)
    assert sorted(client for batch in executor.batches for client, _ in pairs(batch)) == [0, 2, 3, 4, 5]


def test_arrivals_in_order_of_their_finish(protocol: Any) -> None:
    """Equal times in order of dispatch; what is not needed yet stays under way; busy clients are not chosen."""
    trace: Trace = []

    async def play(fed: Federation) -> None:
        async for rnd in fed.rounds():
            idle = sorted(fed.select(rnd))
            fed.dispatch(rnd, idle)
            arrived = await fed.arrivals(at_least=2)
            trace.append((idle, *told(arrived, fed), [task.client for task in fed.tasks]))
            fed.aggregate(rnd, arrived)

    run = with_seconds([3.0, 1.0, 2.0, 5.0, 1.0, 4.0], protocol(play), rounds=4, cohort=6)
    run.go()
    assert trace == [
        ([0, 1, 2, 3, 4, 5], 1.0, [(1, 1), (4, 1)], [0, 2, 3, 5]),
        ([1, 4], 2.0, [(2, 1), (1, 2)], [0, 3, 5, 4]),
        ([1, 2], 3.0, [(4, 2), (0, 1)], [3, 5, 1, 2]),
        ([0, 4], 4.0, [(1, 3), (5, 1)], [3, 2, 0, 4]),
    ]
    assert [record.staleness for record in run.records] == [[0, 0], [1, 0], [1, 2], [1, 3]]
    assert [record.virtual_time for record in run.records] == [1.0, 2.0, 3.0, 4.0]


def test_arrivals_until_a_moment_and_all_of_them(protocol: Any) -> None:
    trace: Trace = []

    async def play(fed: Federation) -> None:
        async for rnd in fed.rounds():
            if rnd.number == 1:
                fed.dispatch(rnd, [0, 1, 2, 3])
                trace.append(told(await fed.arrivals(until=2.0), fed))  # who comes at that very moment is in time
                trace.append(told(await fed.arrivals(until=9.0, at_least=1), fed))
                await fed.sleep(0.5)
                trace.append(told(await fed.arrivals(until=3.5), fed))
            else:
                trace.append(told(await fed.arrivals(), fed))  # all
                trace.append(told(await fed.arrivals(), fed))  # nothing is left, nothing to wait for
                trace.append(told(await fed.arrivals(until=8.0), fed))

    run = with_seconds([3.0, 1.0, 2.0, 5.0, 1.0, 4.0], protocol(play), rounds=2, cohort=6)
    run.go()
    assert trace == [
        (2.0, [(1, 1), (2, 1)]),
        (3.0, [(0, 1)]),
        (3.5, []),
        (5.0, [(3, 1)]),
        (5.0, []),
        (8.0, []),
    ]


def chosen(events: Sequence[Event], number: int) -> list[int]:
    """Who was given a task in a round."""
    return sorted(event.client for event in events if event.what == "dispatch" and event.round == number)


def test_a_deadline_gives_up_the_late_and_who_comes_at_that_moment_is_in_time() -> None:
    run = with_seconds([3.0, 1.0, 2.0, 5.0, 1.0, 4.0], rounds=2, cohort=6, deadline=3.0)
    events = events_of(run)
    result = run.go()
    assert [chosen(events, number) for number in (1, 2)] == [[0, 1, 2, 3, 4, 5]] * 2  # given up is free again
    assert [(r.arrived, r.late, r.lost, r.virtual_time) for r in result.records] == [(4, 2, 0, 3.0), (4, 2, 0, 6.0)]
    assert result.summary["late"] == 4


def test_nobody_in_time_is_an_empty_round_and_leaves_the_model() -> None:
    run = with_seconds([3.0] * 6, rounds=2, cohort=6, deadline=1.0)
    before, counts = run.model.clone(), []
    run.bare_rounds(lambda rnd, tally: counts.append((tally.arrived, tally.late, run.fed.now)))
    assert torch.equal(run.model, before)
    assert counts == [(0, 6, 1.0), (0, 6, 2.0)]


def test_nobody_there_is_an_empty_round_that_takes_a_while() -> None:
    fleet = delayed([3.0] * 6, presence=(tiny.Present({1: [], 2: [4]}),))
    run = Run(tiny.experiment(fleet=fleet, rounds=3, cohort=2))
    events = events_of(run)
    records = run.go().records
    assert [r.participants for r in records] == [0, 1, 2]
    assert (chosen(events, 1), chosen(events, 2)) == ([], [4])
    assert [r.virtual_time for r in records] == [EMPTY_SECONDS, EMPTY_SECONDS + 3, EMPTY_SECONDS + 6]


def test_arrivals_come_in_order_of_dispatch_where_they_are_gathered(protocol: Any) -> None:
    trace: Trace = []

    async def play(fed: Federation) -> None:
        async for rnd in fed.rounds():
            trace.append(told(await fed.gather(fed.dispatch(rnd, [3, 0, 5, 1]), rnd.deadline), fed))

    run = with_seconds([3.0, 1.0, 2.0, 5.0, 1.0, 4.0], protocol(play), rounds=1)
    run.go()
    assert trace == [(5.0, [(3, 1), (0, 1), (5, 1), (1, 1)])]


def test_delayed_by_rounds(protocol: Any) -> None:
    """Client 1 of round 1 comes two rounds later, at the round's start; it is busy until then."""
    trace: Trace = []

    async def play(fed: Federation) -> None:
        async for rnd in fed.rounds():
            idle = sorted(fed.select(rnd))
            fed.dispatch(rnd, idle)
            trace.append((idle, *told(await fed.arrivals(), fed)))  # does not wait for the held

    late = tiny.DelayRounds({(1, 1): 2, (0, 1): 1, (4, 3): 5})
    run = with_seconds([3.0, 1.0, 2.0, 5.0, 1.0, 4.0], protocol(play), late, rounds=3, cohort=6)
    run.go()
    assert trace == [
        ([0, 1, 2, 3, 4, 5], 5.0, [(4, 1), (2, 1), (5, 1), (3, 1)]),
        ([2, 3, 4, 5], 10.0, [(0, 1), (4, 2), (2, 2), (5, 2), (3, 2)]),
        ([0, 2, 3, 4, 5], 15.0, [(1, 1), (2, 3), (0, 3), (5, 3), (3, 3)]),
    ]


def test_a_synchronous_round_gives_up_what_is_delayed_by_rounds() -> None:
    late = tiny.DelayRounds({(client, 1): 1 for client in (1, 2)})
    records = with_seconds([1.0] * 6, None, late, tiny.Lost((2, 1)), rounds=2, cohort=6).go().records
    assert [(r.arrived, r.late, r.lost) for r in records] == [(4, 1, 1), (6, 0, 0)]


def test_what_is_under_way_at_once_is_trained_at_once() -> None:
    """The first batch tells how large an upload is; from then on training waits until something lands."""
    run, executor = watched(fleet=delayed([3.0, 1.0, 2.0, 5.0, 1.0, 4.0]), rounds=3, cohort=5)
    run.go()
    assert [len(batch) for batch in executor.batches] == [5, 5, 5]
    assert [{task.round for task in batch} for batch in executor.batches] == [{1}, {2}, {3}]


def test_lost_updates_are_never_trained() -> None:
    run, executor = watched(fleet=delayed([1.0] * 6, tiny.Lost((2, 1), (3, 2))), rounds=2, cohort=6)
    run.go()
    first, second = map(pairs, executor.batches)
    assert sorted(first) == [(client, 1) for client in (0, 1, 3, 4, 5)]
    assert sorted(second) == [(client, 2) for client in (0, 1, 2, 4, 5)]


def test_waiting_for_more_than_there_is_ends_when_all_are_there(protocol: Any) -> None:
    trace: Trace = []

    async def play(fed: Federation) -> None:
        async for rnd in fed.rounds():
            fed.dispatch(rnd, [0, 1, 2])
            trace.append(told(await fed.arrivals(at_least=9), fed))

    with_seconds([1.0] * 6, protocol(play), tiny.Lost((1, 1)), rounds=1).go()
    assert trace == [(1.0, [(0, 1), (2, 1)])]


def test_a_client_keeps_state_only_of_accepted_updates(protocol: Any) -> None:
    """Given up, lost or never merged: the state stays as it was."""

    async def play(fed: Federation) -> None:
        async for rnd in fed.rounds():
            arrived = await fed.gather(fed.dispatch(rnd, [0, 1, 2, 3]), 2.0)
            fed.aggregate(rnd, [update for update in arrived if update.client != 1])

    method = compose(make_method("scaffold"), protocol=protocol(play).protocol)
    run = with_seconds([1.0, 1.0, 3.0, 1.0, 1.0, 1.0], method, tiny.Lost((3, 1)), rounds=2)
    run.go()
    assert isinstance(run.carrier, VirtualCarrier)
    assert [run.carrier.store.get(client) is not None for client in range(4)] == [True, False, False, True]


class Chance(tiny.OneByOne):
    """Three of ten updates are lost."""

    def one(self, client: int, number: int, fate: Fate) -> Fate:
        return fate._replace(lost=bool(Key.root(1).fold(client, number).generator().random() < 0.3))


def test_the_same_seed_gives_every_method_the_same_fate_and_cohorts() -> None:
    seen = []
    for spec in ("fedavg", "scaffold", "fedadam"):
        run, executor = watched(make_method(spec), fleet=delayed([1.0] * 6, Chance()), rounds=4, cohort=4)
        run.go()
        seen.append([sorted(pairs(batch)) for batch in executor.batches])
    assert seen[0] == seen[1] == seen[2]


def test_a_round_averages_each_layer_over_those_who_trained_it() -> None:
    """By a plain loop over what arrived, where limited devices train the classifier alone."""
    came = Came()
    e = tiny_experiment(compose(PARTS.make("classifier_only_when_limited"), came.part), "mlp", rounds=1)
    found = Run(e).go().params
    ((params, updates),) = came.merged
    expected = params.clone()
    assert 0 < float(updates.trained.mean()) < 1
    for layer in e.net.layout.layers:
        those = [k for k in range(len(updates)) if updates.trained[k, layer.order]]
        total = sum(float(updates.n[k]) for k in those)
        for k in those:
            piece = updates.delta[k, layer.start : layer.stop]
            expected[layer.start : layer.stop] += float(updates.n[k]) / total * piece
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, params)
