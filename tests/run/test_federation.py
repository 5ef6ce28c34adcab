"""The federation on the virtual clock: who trains when, what arrives when, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from motley.bench.agreement import tiny_experiment
from motley.client.trainer import Outcome
from motley.core.errors import TrainingError
from motley.core.keys import Key
from motley.core.part import PARTS, Method, Part, compose
from motley.core.types import Round, Tree, Updates
from motley.fleet.fleet import Fate, Fleet
from motley.methods import make_method
from motley.nets.cost import flops
from motley.protocol.federation import PROTOCOLS, Arrival, Federation
from motley.run.charges import Ticket
from motley.run.executors import Job
from motley.run.federation import EMPTY_ROUND_SECONDS
from motley.run.flights import Tally
from motley.run.runner import Run
from tests import tiny

Trace = list[tuple[Any, ...]]


class Spy:
    """An executor that notes which jobs were trained together."""

    name = "spy"

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.batches: list[list[tuple[int, int]]] = []

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        self.batches.append([(job.client, job.facts.round) for job in jobs])
        return list(self.inner.run(jobs))

    def close(self) -> None:
        self.inner.close()


def make_run(method: Method | None = None, **given: Any) -> tuple[Run, Spy]:
    run = Run(tiny.experiment(method, **given), None)
    spy = Spy(run.executor)
    run.executor = run.fed.executor = spy
    return run, spy


@pytest.fixture
def protocol() -> Iterator[Any]:
    """Registers a protocol for one test: ``protocol(function) -> method``."""

    def register(function: Any) -> Method:
        PROTOCOLS.add("test")(function)
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


def with_seconds(seconds: list[float], method: Method | None = None, **given: Any) -> tuple[Run, Spy]:
    """A run in which client i takes exactly ``seconds[i]``, and its delay."""
    run, spy = make_run(method, fleet=Fleet.ideal(6, Key.root(0)).with_(**given.pop("fleet", {})), **given)

    def durations(tickets: Sequence[Ticket], trained: Any) -> list[float]:
        return [seconds[ticket.client] + ticket.fate.delay for ticket in tickets]

    run.fed.charges.durations = durations  # type: ignore[method-assign]
    return run, spy


def told(arrivals: Sequence[Arrival], fed: Federation) -> tuple[Any, ...]:
    return fed.now, [(a.client, a.round) for a in arrivals]


def test_times_and_bytes_by_hand() -> None:
    """SCAFFOLD sends and receives a control variate as large as the model."""
    made = tiny.experiment()
    size = made.net.size
    fleet = Fleet.ideal(6, Key.root(0)).with_(
        flops=np.array([1e3, 2e3, 3e3, 4e3, 5e3, 6e3]),
        down=np.arange(1.0, 7.0) * 100,
        up=np.arange(1.0, 7.0) * 10,
        fortune=(tiny.Lost((1, 1)), tiny.Delay({client: 0.5 * client for client in range(6)})),
    )
    run, _ = make_run(make_method("scaffold"), fleet=fleet, rounds=2, cohort=6, epochs=2.0)
    arrived: dict[tuple[int, int], Arrival] = {}
    take = run.fed._take

    def remember(flight: Any) -> Arrival:
        arrival = take(flight)
        arrived[arrival.client, arrival.round] = arrival
        return arrival

    run.fed._take = remember  # type: ignore[method-assign]
    result = run.go()
    per_sample = flops(made.cost)
    first_times = []
    for client in range(6):
        compute = 2.0 * tiny.SIZES[client] * per_sample / (1e3 * (client + 1))
        link = 8 * size / (100.0 * (client + 1)) + 8 * size / (10.0 * (client + 1))
        seconds = link + compute + 0.5 * client
        if client != 1:
            assert arrived[client, 1].duration == pytest.approx(seconds)
            assert arrived[client, 1].steps == 2 * math.ceil(tiny.SIZES[client] / 4)
            assert arrived[client, 1].n == tiny.SIZES[client]
            first_times.append(seconds)
        assert arrived[client, 2].duration == pytest.approx(seconds)
    first, second = result.records
    assert first.virtual_time == pytest.approx(max(first_times))
    assert (first.participants, first.arrived, first.lost, first.late) == (6, 5, 1, 0)
    assert (first.bytes_down, first.bytes_up) == (6 * 8 * size, 5 * 8 * size)
    assert (second.bytes_down, second.bytes_up, second.lost) == (6 * 8 * size, 6 * 8 * size, 0)
    assert result.summary["lost"] == 1


def test_a_device_that_stops_early_is_charged_for_what_it_did_and_sends_nothing() -> None:
    fleet = fleet_of([1.0, 8.0, 1.0, 1.0, 1.0, 1.0], tiny.experiment())
    run, spy = make_run(fleet=fleet.with_(fortune=(tiny.Affordable({1: 0.5}),)), rounds=1, cohort=6, epochs=1.0)
    record = run.go().records[0]
    assert record.virtual_time == pytest.approx(4.0)
    assert (record.arrived, record.lost) == (5, 1)
    assert all(client != 1 for batch in spy.batches for client, _ in batch)


def test_arrivals_in_order_of_their_finish(protocol: Any) -> None:
    """Equal times in order of dispatch; what is not needed yet stays in flight; busy clients are not chosen."""
    trace: Trace = []

    async def play(fed: Federation) -> None:
        async for rnd in fed.rounds():
            idle = sorted(fed.select(rnd))
            fed.dispatch(rnd, idle)
            arrived = await fed.arrivals(at_least=2)
            trace.append((idle, *told(arrived, fed), [flight.client for flight in fed.flights]))
            fed.aggregate(rnd, arrived)

    run, _ = with_seconds([3.0, 1.0, 2.0, 5.0, 1.0, 4.0], protocol(play), rounds=4, cohort=6)
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

    run, _ = with_seconds([3.0, 1.0, 2.0, 5.0, 1.0, 4.0], protocol(play), rounds=2, cohort=6)
    run.go()
    assert trace == [
        (2.0, [(1, 1), (2, 1)]),
        (3.0, [(0, 1)]),
        (3.5, []),
        (5.0, [(3, 1)]),
        (5.0, []),
        (8.0, []),
    ]


def test_a_deadline_gives_up_the_late_and_who_comes_at_that_moment_is_in_time() -> None:
    run, _ = with_seconds([3.0, 1.0, 2.0, 5.0, 1.0, 4.0], rounds=2, cohort=6, deadline=3.0)
    dispatched: list[list[int]] = []
    select = run.fed.server.select
    run.fed.server.select = lambda *a: dispatched.append(sorted(select(*a))) or dispatched[-1]  # type: ignore
    result = run.go()
    assert dispatched == [[0, 1, 2, 3, 4, 5]] * 2  # given up is free again
    assert [(r.arrived, r.late, r.lost, r.virtual_time) for r in result.records] == [(4, 2, 0, 3.0), (4, 2, 0, 6.0)]
    assert result.summary["late"] == 4


def test_nobody_in_time_is_an_empty_round_and_leaves_the_model() -> None:
    run, _ = with_seconds([3.0] * 6, rounds=2, cohort=6, deadline=1.0)
    before = run.fed.weights.value.clone()
    result = run.go()
    assert torch.equal(result.params, before)
    assert [(r.arrived, r.late, r.virtual_time) for r in result.records] == [(0, 6, 1.0), (0, 6, 2.0)]


def test_nobody_there_is_an_empty_round_that_takes_a_while() -> None:
    run, _ = with_seconds([3.0] * 6, rounds=3, cohort=2, fleet={"presence": (tiny.Present({1: [], 2: [4]}),)})
    chosen: list[list[int]] = []
    select = run.fed.server.select
    run.fed.server.select = lambda *a: chosen.append(select(*a)) or chosen[-1]  # type: ignore
    records = run.go().records
    assert [r.participants for r in records] == [0, 1, 2]
    assert chosen[:2] == [[], [4]]
    assert [r.virtual_time for r in records] == [EMPTY_ROUND_SECONDS, EMPTY_ROUND_SECONDS + 3, EMPTY_ROUND_SECONDS + 6]


def test_arrivals_come_in_order_of_dispatch_where_they_are_gathered(protocol: Any) -> None:
    trace: Trace = []

    async def play(fed: Federation) -> None:
        async for rnd in fed.rounds():
            trace.append(told(await fed.gather(fed.dispatch(rnd, [3, 0, 5, 1]), rnd.deadline), fed))

    run, _ = with_seconds([3.0, 1.0, 2.0, 5.0, 1.0, 4.0], protocol(play), rounds=1)
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

    delays = {(1, 1): 2, (0, 1): 1, (4, 3): 5}
    run, _ = with_seconds(
        [3.0, 1.0, 2.0, 5.0, 1.0, 4.0],
        protocol(play),
        rounds=3,
        cohort=6,
        fleet={"fortune": (tiny.DelayRounds(delays),)},
    )
    run.go()
    assert trace == [
        ([0, 1, 2, 3, 4, 5], 5.0, [(4, 1), (2, 1), (5, 1), (3, 1)]),
        ([2, 3, 4, 5], 10.0, [(0, 1), (4, 2), (2, 2), (5, 2), (3, 2)]),
        ([0, 2, 3, 4, 5], 15.0, [(1, 1), (2, 3), (0, 3), (5, 3), (3, 3)]),
    ]


def test_a_synchronous_round_gives_up_what_is_delayed_by_rounds() -> None:
    delays = {(client, 1): 1 for client in (1, 2)}
    run, _ = with_seconds(
        [1.0] * 6, rounds=2, cohort=6, fleet={"fortune": (tiny.DelayRounds(delays), tiny.Lost((2, 1)))}
    )
    records = run.go().records
    assert [(r.arrived, r.late, r.lost) for r in records] == [(4, 1, 1), (6, 0, 0)]


def test_what_is_in_flight_at_once_is_trained_at_once() -> None:
    """The first batch tells how large an upload is; from then on training waits until something lands."""
    run, spy = with_seconds([3.0, 1.0, 2.0, 5.0, 1.0, 4.0], rounds=3, cohort=5)
    run.go()
    assert [len(batch) for batch in spy.batches] == [5, 5, 5]
    assert [{number for _, number in batch} for batch in spy.batches] == [{1}, {2}, {3}]


def test_lost_updates_are_never_trained() -> None:
    run, spy = with_seconds([1.0] * 6, rounds=2, cohort=6, fleet={"fortune": (tiny.Lost((2, 1), (3, 2)),)})
    run.go()
    assert [len(batch) for batch in spy.batches] == [5, 5]
    assert (2, 1) not in spy.batches[0]
    assert (3, 2) not in spy.batches[1]


def test_waiting_for_more_than_there_is_ends_when_all_are_there(protocol: Any) -> None:
    trace: Trace = []

    async def play(fed: Federation) -> None:
        async for rnd in fed.rounds():
            fed.dispatch(rnd, [0, 1, 2])
            trace.append(told(await fed.arrivals(at_least=9), fed))

    run, _ = with_seconds([1.0] * 6, protocol(play), rounds=1, fleet={"fortune": (tiny.Lost((1, 1)),)})
    run.go()
    assert trace == [(1.0, [(0, 1), (2, 1)])]


def test_a_client_keeps_state_only_of_accepted_updates(protocol: Any) -> None:
    """Given up, lost or never merged: the state stays as it was."""

    async def play(fed: Federation) -> None:
        async for rnd in fed.rounds():
            arrived = await fed.gather(fed.dispatch(rnd, [0, 1, 2, 3]), 2.0)
            fed.aggregate(rnd, [arrival for arrival in arrived if arrival.client != 1])

    method = compose(make_method("scaffold"), protocol=protocol(play).protocol)
    run, _ = with_seconds([1.0, 1.0, 3.0, 1.0, 1.0, 1.0], method, rounds=2, fleet={"fortune": (tiny.Lost((3, 1)),)})
    run.go()
    assert run.fed.store.get(1) is None
    assert run.fed.store.get(2) is None
    assert run.fed.store.get(0) is not None
    assert run.fed.store.get(3) is not None


class Poison:
    """An executor that makes some updates NaN."""

    name = "poison"

    def __init__(self, inner: Any, bad: set[tuple[int, int]]) -> None:
        self.inner, self.bad = inner, bad

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        outcomes = self.inner.run(jobs)
        return [
            o._replace(payload=o.payload * math.nan) if (job.client, job.facts.round) in self.bad else o
            for job, o in zip(jobs, outcomes, strict=True)
        ]

    def close(self) -> None:
        self.inner.close()


def test_an_update_that_is_not_finite_stops_the_run_with_a_sentence() -> None:
    run, spy = with_seconds([1.0] * 6, rounds=3, cohort=6)
    run.fed.executor = Poison(spy, {(4, 2)})
    with pytest.raises(TrainingError, match=r"update of client 4 in round 2 is not finite .* on_bad_update=drop"):
        run.go()


def test_a_part_that_stumbles_over_such_an_update_is_not_blamed() -> None:
    def observe(s: Tree, rnd: Round, updates: Updates) -> Tree:
        assert bool(torch.isfinite(updates.delta).all()), "numbers, please"
        return s

    method = compose(make_method("fedavg"), Part("strict", observe=observe))
    run, spy = with_seconds([1.0] * 6, method, rounds=3, cohort=6)
    run.fed.executor = Poison(spy, {(4, 2)})
    with pytest.raises(TrainingError, match="update of client 4 in round 2 is not finite"):
        run.go()


def test_the_training_loss_of_a_round_is_the_mean_over_samples_without_what_is_not_finite() -> None:
    losses = torch.tensor([2.0, math.nan, 4.0])
    tally = Tally(losses=list(zip(losses.unbind(), [1.0, 5.0, 3.0], strict=True)))
    assert tally.train_loss() == pytest.approx((2.0 * 1 + 4.0 * 3) / 4)
    assert Tally().train_loss() is None


def test_or_is_dropped_as_if_it_had_been_lost() -> None:
    run, spy = with_seconds([1.0] * 6, make_method("scaffold"), rounds=3, cohort=6, on_bad_update="drop")
    run.fed.executor = Poison(spy, {(4, 2), (1, 2)})
    lost, _ = with_seconds(
        [1.0] * 6, make_method("scaffold"), rounds=3, cohort=6, fleet={"fortune": (tiny.Lost((4, 2), (1, 2)),)}
    )
    dropped, expected = run.go(), lost.go()
    assert dropped.summary["model_sha256"] == expected.summary["model_sha256"]
    assert [(r.lost, r.arrived) for r in dropped.records] == [(r.lost, r.arrived) for r in expected.records]
    assert all(math.isfinite(r.train_loss or 0) for r in dropped.records)


def test_all_of_them_not_finite_leaves_the_model() -> None:
    run, spy = with_seconds([1.0] * 6, rounds=1, cohort=2, on_bad_update="drop")
    run.fed.executor = Poison(spy, {(client, 1) for client in range(6)})
    before = run.fed.weights.value.clone()
    assert torch.equal(run.go().params, before)


def test_a_failing_executor_ends_the_run() -> None:
    class Broken:
        name = "broken"

        def run(self, jobs: Sequence[Job]) -> list[Outcome]:
            raise TrainingError("no electricity")

        def close(self) -> None:
            pass

    run, _ = with_seconds([1.0] * 6)
    run.fed.executor = Broken()
    with pytest.raises(TrainingError, match="no electricity"):
        run.go()


def test_the_same_seed_gives_every_method_the_same_fate_and_cohorts() -> None:
    class Chance(tiny.OneByOne):
        def one(self, client: int, number: int, fate: Fate) -> Fate:
            return fate._replace(lost=bool(Key.root(1).fold(client, number).generator().random() < 0.3))

    counts = []
    for spec in ("fedavg", "scaffold", "fedadam"):
        run, spy = with_seconds([1.0] * 6, make_method(spec), rounds=4, cohort=4, fleet={"fortune": (Chance(),)})
        run.go()
        counts.append([sorted(batch) for batch in spy.batches])
    assert counts[0] == counts[1] == counts[2]


def test_a_round_averages_each_layer_over_those_who_trained_it() -> None:
    """By a plain loop over what arrived, where limited devices train the classifier alone."""
    e = tiny_experiment(compose(PARTS.make("classifier_only_when_limited")), "mlp", rounds=1)
    run = Run(e, None)
    seen: list[tuple[torch.Tensor, Updates]] = []
    merge = run.fed.server.aggregate

    def spied(rnd: Round, params: torch.Tensor, updates: Updates) -> torch.Tensor:
        seen.append((params, updates))
        return merge(rnd, params, updates)

    run.fed.server.aggregate = spied  # type: ignore[method-assign]
    found = run.go().params
    (params, updates), expected = seen[0], seen[0][0].clone()
    assert 0 < float(updates.trained.mean()) < 1
    for layer in e.net.layout.layers:
        those = [k for k in range(len(updates)) if updates.trained[k, layer.order]]
        total = sum(float(updates.n[k]) for k in those)
        for k in those:
            piece = updates.delta[k, layer.start : layer.stop]
            expected[layer.start : layer.stop] += float(updates.n[k]) / total * piece
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, params)
