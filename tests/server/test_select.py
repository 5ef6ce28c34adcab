"""Selection: each rule on numbers small enough to check by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from motley.core.errors import InputError
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import Part
from motley.core.types import Outcomes, Pool, Round, Setting, Updates
from motley.fleet.fleet import Fleet
from motley.methods import make_method
from motley.runtime.fairness import by_group, jain_index, participation, worst_share
from motley.server.select import draw, loss_based, power_of_choice
from motley.server.select_speed import (
    best_cohort,
    fair_queues,
    fastest_in_time,
    oort,
    oort_scores,
    tiers_of_speed,
)
from tests import tiny
from tests.tiny import filled

NET = Network(nn.Linear(1, 2))
SETTING = Setting(
    NET, torch.zeros(4), 6, n=torch.tensor([1.0, 4.0, 9.0, 16.0, 25.0, 36.0]), seconds=torch.arange(6.0) + 1
)


def at(t: int, cohort: int = 2, deadline: float | None = None) -> Round:
    return Round(t, Key.root(t), cohort, 0.0, deadline, NET)


def pool(ids: list[int] | None = None) -> Pool:
    assert SETTING.n is not None
    return Pool(torch.tensor(ids if ids is not None else range(6)), SETTING.n, SETTING.seconds)


def arrived(ids: list[int], loss: list[float], duration: list[float] | None = None) -> Updates:
    assert SETTING.n is not None
    k = len(ids)
    one = torch.ones(k)
    which = torch.tensor(ids)
    return Updates(
        ids=which,
        round=torch.ones(k, dtype=torch.int64),
        age=torch.zeros(k),
        start=torch.zeros(k, 4),
        delta=torch.zeros(k, 4),
        trained=torch.ones(k, 1),
        n=SETTING.n[which],
        loss=torch.tensor(loss),
        steps=one,
        epochs=one,
        lr=one,
        duration=torch.tensor(duration) if duration else one,
        extras={},
    )


def ended(ids: list[int]) -> Outcomes:
    one = torch.ones(len(ids))
    return Outcomes(torch.tensor(ids, dtype=torch.int64), torch.ones(len(ids), dtype=torch.int64), one, one, one, one)


def share_of_choices(part: Part, s: object, rounds: int = 3000, start: int = 1) -> Tensor:
    counts = torch.zeros(6)
    for t in range(start, start + rounds):
        chosen = filled(part.select)(s, at(t, 1), pool())
        counts[chosen] += 1
    return counts / rounds


def test_draw_fills_up_from_those_without_a_score() -> None:
    chosen = draw(at(1, 3), torch.tensor([7, 8, 9, 10]), np.array([0.0, 2.0, 0.0, 0.0]))
    assert len(set(chosen.tolist())) == 3
    assert 8 in chosen.tolist()
    assert len(draw(at(1, 9), torch.tensor([7, 8]), np.array([1.0, 2.0]))) == 2


def test_loss_based_values_and_probabilities() -> None:
    part = loss_based(beta=0.5)
    s = filled(part.init)(SETTING)
    assert s["value"].tolist() == pytest.approx([i * math.log(2) for i in range(1, 7)])
    s = filled(part.observe)(s, at(1), arrived([0, 5], [3.0, 0.5]))
    values = [3.0, 2 * math.log(2), 3 * math.log(2), 4 * math.log(2), 5 * math.log(2), 3.0]
    assert s["value"].tolist() == pytest.approx(values)
    weights = [math.exp(0.5 * v) for v in values]
    expected = torch.tensor(weights) / sum(weights)
    assert torch.allclose(share_of_choices(part, s), expected, atol=0.03)


def test_loss_based_for_the_first_rounds_then_uniform_and_the_other_reading() -> None:
    part = loss_based(beta=5.0, rounds=10, value="sqrt(n*loss)")
    s = filled(part.init)(SETTING)
    s = filled(part.observe)(s, at(1), arrived([1], [9.0]))
    assert float(s["value"][1]) == pytest.approx(6.0)
    assert torch.allclose(share_of_choices(part, s, start=11), torch.full((6,), 1 / 6), atol=0.03)
    with pytest.raises(InputError, match="loss_based"):
        loss_based(value="n")


def test_power_of_choice_takes_the_largest_losses_of_its_candidates() -> None:
    part = power_of_choice(candidates=6)
    s = filled(part.init)(SETTING)
    s = filled(part.observe)(s, at(1), arrived([0, 1, 2, 3, 4, 5], [1.0, 6.0, 2.0, 5.0, 3.0, 4.0]))
    assert filled(part.select)(s, at(2), pool()).tolist() == [1, 3]
    fresh = filled(part.init)(SETTING)
    fresh = filled(part.observe)(fresh, at(1), arrived([0, 1, 2, 3, 4], [1.0, 6.0, 2.0, 5.0, 3.0]))
    assert filled(part.select)(fresh, at(2), pool()).tolist() == [5, 1]


def test_fedcs_takes_who_finishes_in_time_fastest_first() -> None:
    part = fastest_in_time()
    assert filled(part.select)(None, at(1, 4, deadline=3.0), pool()).tolist() == [0, 1, 2]
    assert filled(part.select)(None, at(1, 2, deadline=3.0), pool([2, 3, 5])).tolist() == [2]
    assert filled(part.select)(None, at(1, 2, deadline=0.5), pool()).tolist() == [0]
    assert filled(fastest_in_time(seconds=2.5).select)(None, at(1, 4), pool()).tolist() == [0, 1]
    with pytest.raises(InputError, match="profiled"):
        filled(part.select)(None, at(1, 4), pool()._replace(seconds=None))


def test_tifl_stays_in_one_tier_and_prefers_tiers_with_a_large_loss() -> None:
    part = tiers_of_speed(tiers=3, interval=5, credits=2, always=True)
    s = filled(part.init)(SETTING)
    assert s["tier"].tolist() == [0, 0, 1, 1, 2, 2]
    for t in range(1, 20):
        chosen = filled(part.select)(s, at(t), pool()).tolist()
        assert len(chosen) == 2
        assert chosen[0] // 2 == chosen[1] // 2
    s = filled(part.observe)(s, at(1), arrived([0, 2, 4], [3.0, 1.0, 2.0]))
    s = filled(part.conclude)(s, at(5), ended([0, 1]))
    assert s["share"].tolist() == pytest.approx([3 / 6, 1 / 6, 2 / 6])
    assert s["left"].tolist() == [1.0, 2.0, 2.0]
    s = filled(part.conclude)(s, at(6), ended([0, 1]))
    assert all(filled(part.select)(s, at(t), pool()).tolist()[0] >= 2 for t in range(1, 20))


def test_tifl_weighs_anew_only_where_a_tier_has_not_become_better() -> None:
    """Tier 0 goes from loss 3 to 2: all stays; then back to 2.5: ranks by loss."""
    part = tiers_of_speed(tiers=3, interval=5)
    s = filled(part.init)(SETTING)
    for t, loss, share in ((5, 3.0, [1 / 3] * 3), (10, 2.0, [1 / 3] * 3), (15, 2.5, [3 / 6, 1 / 6, 2 / 6])):
        s = filled(part.observe)(s, at(t), arrived([0, 2, 4], [loss, 1.0, 1.5]))
        s = filled(part.conclude)(s, at(t), ended([0, 1]))
        assert s["share"].tolist() == pytest.approx(share)


def test_oort_explores_by_speed() -> None:
    """Clients 0 to 2 take a hundredth of the others' time: of 300 rounds almost all begin with one of them."""
    seconds = torch.tensor([0.01, 0.01, 0.01, 1.0, 1.0, 1.0])
    part, alike = oort(exploration=1.0), oort(exploration=1.0, explore_by_speed=False)
    quick = [0, 0]
    for i, one in enumerate((part, alike)):
        s = filled(one.init)(SETTING)
        for t in range(1, 301):
            chosen = filled(one.select)(s, at(t), pool()._replace(seconds=seconds)).tolist()
            quick[i] += chosen[0] < 3
    assert quick[0] > 280
    assert 100 < quick[1] < 200


def test_oort_explores_then_exploits() -> None:
    part = oort(exploration=0.5, decay=1.0, window=2)
    s = filled(part.init)(SETTING)
    assert len(filled(part.select)(s, at(1), pool()).tolist()) == 2
    s = filled(part.observe)(s, at(1), arrived([0, 1, 2], [8.0, 1.0, 2.0], [1.0, 1.0, 9.0]))
    chosen = filled(part.select)(s, at(2), pool()).tolist()
    assert chosen[0] in (3, 4, 5)
    assert chosen[1] in (0, 1, 2)


def test_oorts_scores_by_hand() -> None:
    """n * loss = 8, 4, 18, clipped at the largest: (0.2857, 0, 1) + sqrt(0.1 ln 2 / 1); the third took 9 > T = 1 s."""
    part = oort()
    s = filled(part.init)(SETTING)
    s = filled(part.observe)(s, at(1), arrived([0, 1, 2], [8.0, 1.0, 2.0], [1.0, 1.0, 9.0]))
    bonus = math.sqrt(0.1 * math.log(2))
    expected = [4 / 14 + bonus, bonus, (1 + bonus) * (1 / 9) ** 2]
    assert oort_scores(s, 2, torch.tensor([0, 1, 2]), 2.0, 1.0).tolist() == pytest.approx(expected, rel=1e-5)


def test_oorts_pacer_allows_slower_clients_when_utility_falls() -> None:
    part = oort(window=2, percentile=0.3, pace=0.05)
    s = filled(part.init)(SETTING)
    s = filled(part.observe)(s, at(1), arrived([5], [10.0]))
    s = filled(part.conclude)(s, at(2), ended([5]))
    assert float(s["pacer"][0]) == pytest.approx(0.3)
    s = filled(part.observe)(s, at(3), arrived([0], [1.0]))
    s = filled(part.conclude)(s, at(4), ended([0]))
    assert float(s["pacer"][0]) == pytest.approx(0.35)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_best_cohorts_against_all_cohorts(k: int) -> None:
    rng = np.random.default_rng(k)
    for _ in range(20):
        seconds, queue = rng.uniform(0.5, 2, 7), rng.uniform(0, 2, 7)
        found = best_cohort(seconds, queue, k, 1.5)
        assert len(set(found.tolist())) == k

        def value(some: Sequence[int], seconds: Any = seconds, queue: Any = queue) -> float:
            return float(1.5 * seconds[list(some)].max() - queue[list(some)].sum())

        assert value(found.tolist()) == pytest.approx(min(value(some) for some in combinations(range(7), k)))


def test_queues_guarantee_participation() -> None:
    part = fair_queues(fraction=0.9, penalty=0.5)
    s = filled(part.init)(SETTING)
    counts = np.zeros(6)
    for t in range(1, 301):
        chosen = filled(part.select)(s, at(t), pool()).tolist()
        counts[chosen] += 1
        s = filled(part.conclude)(s, at(t), ended(chosen))
    assert counts.min() / 300 > 0.9 * 2 / 6 - 0.03
    greedy = fair_queues(fraction=0.0)
    free = filled(greedy.init)(SETTING)
    assert sorted(filled(greedy.select)(free, at(1), pool()).tolist()) == [0, 1]


def test_oorts_scores_where_nothing_takes_time_are_those_without_times() -> None:
    part = oort()
    s = filled(part.observe)(filled(part.init)(SETTING), at(1), arrived([0, 1, 2], [8.0, 1.0, 2.0], [0.0, 0.0, 0.0]))
    bonus = math.sqrt(0.1 * math.log(2))
    found = oort_scores(s, 2, torch.tensor([0, 1, 2]), 2.0, 1.0)
    assert found.tolist() == pytest.approx([4 / 14 + bonus, bonus, 1 + bonus], rel=1e-5)


def test_oort_prefers_who_takes_no_time_to_who_does() -> None:
    part = oort(percentile=0.0)
    s = filled(part.observe)(filled(part.init)(SETTING), at(1), arrived([0, 1], [1.0, 9.0], [0.0, 2.0]))
    first, second = oort_scores(s, 2, torch.tensor([0, 1]), 2.0, 1.0).tolist()
    assert first > second > 0


def test_queues_where_nothing_takes_time_go_by_their_length_alone() -> None:
    part = fair_queues()
    state = {"queue": torch.tensor([0.0, 3.0, 1.0, 0.0, 2.0, 0.0])}
    chosen = filled(part.select)(state, at(1), pool()._replace(seconds=torch.zeros(6)))
    assert sorted(chosen.tolist()) == [1, 4]


@pytest.mark.parametrize("method", ["oort", "rbcs"])
def test_a_run_in_which_nothing_takes_time(method: str) -> None:
    at_once = np.full(6, np.inf)
    fleet = Fleet.ideal(6, Key.root(0)).with_(flops=at_once, up=at_once, down=at_once)
    records = tiny.run(make_method(method), fleet=fleet, cohort=2, rounds=4).records
    assert [(record.arrived, record.virtual_time) for record in records] == [(2, 0.0)] * 4


def test_fairness_measures_by_hand() -> None:
    assert jain_index([2, 2, 2]) == pytest.approx(1.0)
    assert jain_index([3, 0, 0]) == pytest.approx(1 / 3)
    assert jain_index([0, 0]) == 1.0
    assert by_group([5, 1, 3, 7], [1.0, 4.0, 2.0, 3.0], 2) == [4.0, 4.0]
    assert worst_share([0.9, 0.1, 0.5, 0.7], 0.5) == pytest.approx(0.3)
    found = participation(np.array([1, 3]), np.array([0, 3]), np.array([5.0, 1.0]))
    assert found["chosen_by_speed"] == [3.0, 1.0]
    assert found["jain_merged"] == pytest.approx(0.5)
    assert "chosen_by_speed" not in participation(np.array([1]), np.array([1]), np.array([2.0]))
