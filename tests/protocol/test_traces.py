"""The order of events of every protocol, against traces written by hand."""

from __future__ import annotations

import pytest

import motley
from motley.core.errors import TrainingError
from tests.protocol.world import Chosen, fleet_of, run_of, trace


def lines(text: str) -> list[str]:
    return [row.strip() for row in text.strip().splitlines()]


def test_synchronous_gives_up_who_is_late() -> None:
    fleet = fleet_of(Chosen((1.0, 2.0, 3.0), lost=frozenset({(0, 2)})))
    assert trace(run_of(fleet, "synchronous", rounds=2, deadline=2.5)) == lines("""
        0 dispatch 0 1
        0 dispatch 1 1
        0 dispatch 2 1
        1 arrive 0 1
        2 arrive 1 1
        2.5 give up 2 1
        2.5 aggregate 1
        2.5 dispatch 0 2
        2.5 dispatch 1 2
        2.5 dispatch 2 2
        3.5 lose 0 2
        4.5 arrive 1 2
        5 give up 2 2
        5 aggregate 2
    """)


def test_late_updates_join_the_round_in_which_they_arrive() -> None:
    fates = Chosen((1.0, 2.0, 1.5), lost=frozenset({(1, 1)}), held=((2, 1, 1), (2, 2, 2)))
    run = run_of(fleet_of(fates), "late", rounds=3)
    assert trace(run) == lines("""
        0 dispatch 0 1
        0 dispatch 1 1
        0 dispatch 2 1
        1 arrive 0 1
        1.5 hold 2 1
        2 lose 1 1
        2 aggregate 1
        2 arrive 2 1
        2 dispatch 0 2
        2 dispatch 1 2
        2 dispatch 2 2
        3 arrive 0 2
        3.5 hold 2 2
        4 arrive 1 2
        4 aggregate 2
        4 dispatch 0 3
        4 dispatch 1 3
        4 dispatch 2 3
        5 arrive 0 3
        5.5 arrive 2 3
        6 arrive 1 3
        6 aggregate 3
    """)
    assert [record.staleness for record in run.records] == [[0], [1, 0, 0], [0, 0, 0]]
    assert [record.lost for record in run.records] == [1, 0, 0]


def test_late_rounds_of_fixed_length_take_what_is_there() -> None:
    run = run_of(fleet_of(Chosen((1.0, 5.0))), "late", rounds=3, options={"round_seconds": 2.0})
    assert trace(run) == lines("""
        0 dispatch 0 1
        0 dispatch 1 1
        1 arrive 0 1
        2 aggregate 1
        2 dispatch 0 2
        3 arrive 0 2
        4 aggregate 2
        4 dispatch 0 3
        5 arrive 1 1
        5 arrive 0 3
        6 aggregate 3
    """)
    assert [record.staleness for record in run.records] == [[0], [0], [2, 0]]


def test_late_drops_what_is_too_old() -> None:
    fates = Chosen((1.0, 1.0), held=((1, 1, 2),))
    run = run_of(fleet_of(fates), "late", rounds=3, options={"maximum_staleness": 1})
    run.go()
    assert [record.staleness for record in run.records] == [[0], [0, 0], [0, 0]]
    assert [record.late for record in run.records] == [0, 0, 1]
    assert [record.arrived for record in run.records] == [1, 2, 2], "what is thrown away does not count twice"


def test_late_does_not_ask_again_who_is_held_up_if_told_so() -> None:
    fates = Chosen((1.0, 1.0), held=((1, 1, 2),))
    run = run_of(fleet_of(fates), "late", rounds=3, options={"reselect": False})
    run.go()
    assert [record.participants for record in run.records] == [2, 1, 1]


def test_asynchronous_merges_every_arrival() -> None:
    run = run_of(fleet_of(Chosen((1.0, 2.5, 1.0))), "asynchronous", rounds=4, options={"concurrency": 2})
    assert trace(run) == lines("""
        0 dispatch 0 1
        0 dispatch 1 1
        1 arrive 0 1
        1 aggregate 1
        1 dispatch 0 2
        2 arrive 0 2
        2 aggregate 2
        2 dispatch 0 3
        2.5 arrive 1 1
        2.5 aggregate 3
        2.5 dispatch 1 4
        3 arrive 0 3
        3 aggregate 4
    """)
    assert [record.staleness for record in run.records] == [[0], [0], [2], [1]]


def test_asynchronous_buffer_fills_while_new_tasks_go_out_and_losses_are_replaced() -> None:
    fates = Chosen((1.0, 2.5, 1.0, 1.0), lost=frozenset({(0, 1)}))
    run = run_of(fleet_of(fates), "asynchronous", rounds=2, options={"concurrency": 2, "buffer": 2})
    assert trace(run) == lines("""
        0 dispatch 0 1
        0 dispatch 1 1
        1 lose 0 1
        1 dispatch 2 1
        2 arrive 2 1
        2 dispatch 3 1
        2.5 arrive 1 1
        2.5 aggregate 1
        2.5 dispatch 0 2
        3 arrive 3 1
        3 dispatch 1 2
        3.5 arrive 0 2
        3.5 aggregate 2
    """)


def test_asynchronous_throws_away_what_is_too_old() -> None:
    options = {"concurrency": 2, "maximum_staleness": 1}
    run = run_of(fleet_of(Chosen((1.0, 2.5, 1.0))), "asynchronous", rounds=3, options=options)
    run.go()
    assert [record.staleness for record in run.records] == [[0], [0], [0]]
    assert [record.late for record in run.records] == [0, 0, 1]
    assert [record.virtual_time for record in run.records] == [1.0, 2.0, 3.0]


def test_asynchronous_goes_on_when_everything_is_held_back() -> None:
    run = run_of(fleet_of(Chosen((1.0,), held=((0, 1, 1),))), "asynchronous", rounds=2)
    run.go()
    assert [record.arrived for record in run.records] == [0, 1]


def test_tiers_run_rounds_of_their_own() -> None:
    fleet = fleet_of(Chosen((1.0, 1.0, 3.0, 3.0)), speeds=[1.0, 1.0, 0.1, 0.1])
    run = run_of(fleet, "tiered", rounds=4, cohort=2, options={"tiers": 2})
    assert trace(run) == lines("""
        0 dispatch 0 1
        0 dispatch 1 1
        0 dispatch 2 1
        0 dispatch 3 1
        1 arrive 0 1
        1 arrive 1 1
        1 aggregate 1
        1 dispatch 0 2
        1 dispatch 1 2
        2 arrive 0 2
        2 arrive 1 2
        2 aggregate 2
        2 dispatch 0 3
        2 dispatch 1 3
        3 arrive 2 1
        3 arrive 3 1
        3 aggregate 3
        3 dispatch 2 4
        3 dispatch 3 4
        3 arrive 0 3
        3 arrive 1 3
        3 aggregate 4
    """)


def test_a_tier_that_fails_is_asked_again_only_in_the_next_round() -> None:
    lost = frozenset({(0, 1), (1, 1)})
    fleet = fleet_of(Chosen((1.0, 1.0, 3.0, 3.0), lost=lost), speeds=[1.0, 1.0, 0.1, 0.1])
    run = run_of(fleet, "tiered", rounds=2, cohort=2, options={"tiers": 2})
    assert trace(run) == lines("""
        0 dispatch 0 1
        0 dispatch 1 1
        0 dispatch 2 1
        0 dispatch 3 1
        1 lose 0 1
        1 lose 1 1
        3 arrive 2 1
        3 arrive 3 1
        3 aggregate 1
        3 dispatch 0 2
        3 dispatch 1 2
        3 dispatch 2 2
        3 dispatch 3 2
        4 arrive 0 2
        4 arrive 1 2
        4 aggregate 2
    """)


def test_tiers_that_all_fail_are_asked_once_a_round() -> None:
    """Each round tells that nothing came of anybody, and waits before the next."""
    lost = frozenset({(0, 1), (1, 1), (0, 2), (1, 2)})
    fleet = fleet_of(Chosen((1.0, 2.0), lost=lost), speeds=[1.0, 0.1])
    run = run_of(fleet, "tiered", rounds=3, options={"tiers": 2})
    assert trace(run) == lines("""
        0 dispatch 0 1
        0 dispatch 1 1
        1 lose 0 1
        2 lose 1 1
        62 dispatch 0 2
        62 dispatch 1 2
        63 lose 0 2
        64 lose 1 2
        124 dispatch 0 3
        124 dispatch 1 3
        125 arrive 0 3
        125 aggregate 3
    """)


@pytest.mark.parametrize("method", ["fedavg", "fedasync", "fedbuff", "ama_async", "safa", "fedat"])
def test_every_protocol_ends_where_all_updates_are_lost(method: str) -> None:
    with pytest.raises(TrainingError, match=r"In 3 rounds not one update reached the server"):
        motley.run("digits", method=method, rounds=3, cohort=4, clients=10, fleet="loss(probability=1.0)")


def test_semi_asynchronous_takes_the_first_and_calls_back_the_slow() -> None:
    run = run_of(fleet_of(Chosen((1.0, 2.0, 4.0))), "semi_asynchronous", rounds=4, cohort=1, options={"lag": 2})
    assert trace(run) == lines("""
        0 dispatch 0 1
        0 dispatch 1 1
        0 dispatch 2 1
        1 arrive 0 1
        1 aggregate 1
        1 dispatch 0 2
        2 arrive 1 1
        2 aggregate 2
        2 dispatch 1 3
        2 arrive 0 2
        2 aggregate 3
        2 give up 2 1
        2 dispatch 0 4
        2 dispatch 2 4
        3 arrive 0 4
        4 arrive 1 3
        4 aggregate 4
    """)
