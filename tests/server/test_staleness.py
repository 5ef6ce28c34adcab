"""Stale updates: hand-computed numbers, and a slow oracle for whole rounds of asynchronous AMA."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from motley.core.errors import InputError
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import Part
from motley.core.schedule import value_at
from motley.core.tasks import NOTHING, Assignment, Weights
from motley.core.types import Outcomes, Round, Setting, Updates
from motley.engine.loop import run_task
from motley.runtime.experiment import Experiment
from motley.runtime.launch import run as run_recipe
from motley.server import staleness
from motley.server.aggregate import layerwise_mean
from motley.server.step import mix_with_previous
from tests.protocol.world import Chosen, fleet_of, run_of
from tests.tiny import filled, updates_of

NET = Network(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)))


def updates(age: list[float], start: list[list[float]], delta: list[list[float]], n: list[float]) -> Updates:
    number = torch.zeros(len(age), dtype=torch.int64)
    return updates_of(torch.tensor(delta), torch.ones(len(age), 2), age=age, start=start, n=n, round=number)


def at(t: int, part: Part | None = None) -> Round:
    """Round t, as that part sees it."""
    dials = {} if part is None else {name: value_at(dial, t) for name, dial in part.dials.items()}
    return Round(t, Key.root(0), 10, 0.0, None, NET, dials=dials)


def merged(part: Part, t: int, params: Tensor, found: Updates) -> Tensor:
    return filled(part.merge)(None, at(t, part), params, found, found.n)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# ------------------------------------------------------------------------------------- asynchronous AMA, eq. 6-11


def test_shares_of_one_late_update_by_hand() -> None:
    """A = 0.15; alpha_raw = 1 - sigmoid(1) = 0.26894; gamma_raw = 0.6 (1 - sigmoid(2)) = 0.07152."""
    share = staleness.ama_shares(
        0.15, 0.6, torch.tensor([0.0, 0.0, 2.0]), torch.tensor([1.0, 3.0, 5.0]), torch.ones(3, 1)
    )
    alpha_raw, gamma_raw = 1 - sigmoid(1), 0.6 * (1 - sigmoid(2))
    gamma = gamma_raw / (alpha_raw + gamma_raw) * 0.15
    assert share[:, 0].tolist() == pytest.approx([0.85 * 0.25, 0.85 * 0.75, gamma], rel=1e-6)
    assert gamma == pytest.approx(0.031508, rel=1e-4)
    alpha = 1 - float(share.sum())
    assert alpha == pytest.approx(alpha_raw / (alpha_raw + gamma_raw) * 0.15, rel=1e-5)


def test_shares_sum_to_one_with_alpha_and_beta_stays() -> None:
    ages = torch.tensor([0.0, 1.0, 4.0, 0.0, 15.0])
    for mixed in (0.1, 0.5, 0.95):
        share = staleness.ama_shares(mixed, 0.6, ages, torch.rand(5) + 0.1, torch.ones(5, 2))
        raw = [0.6 * (1 - sigmoid(a)) for a in (1, 4, 15)]
        alpha = (1 - sigmoid(1)) / (1 - sigmoid(1) + sum(raw)) * mixed
        assert float(share[:, 0].sum()) + alpha == pytest.approx(1.0, abs=1e-6)
        assert float(share[ages == 0, 1].sum()) == pytest.approx(1 - mixed, abs=1e-6)
        late = share[ages > 0, 0].tolist()
        assert late == sorted(late, reverse=True)
        assert alpha > late[0]


def test_without_late_updates_it_is_equation_5() -> None:
    params = torch.tensor([1.0, 2.0])
    found = updates([0.0, 0.0], [[1.0, 2.0]] * 2, [[0.5, 1.0], [-0.25, 3.0]], [10.0, 30.0])
    late = merged(staleness.mix_stale_models(alpha=0.1, slope=0.01), 5, params, found)
    mean = layerwise_mean(NET, params, found, found.n)
    mixing = mix_with_previous(alpha=0.1, slope=0.01)
    plain, _ = filled(mixing.step)(None, at(5, mixing), params, mean, found)
    assert torch.allclose(late, plain, atol=1e-7)


def test_without_fresh_updates_betas_share_goes_to_alpha() -> None:
    params = torch.tensor([1.0, 1.0])
    found = updates([3.0], [[0.0, 0.0]], [[2.0, 4.0]], [7.0])
    gamma_raw, alpha_raw = 0.6 * (1 - sigmoid(3)), 1 - sigmoid(1)
    gamma = gamma_raw / (alpha_raw + gamma_raw) * 0.15
    got = merged(staleness.mix_stale_models(alpha=0.1, slope=0.01), 5, params, found)
    assert got.tolist() == pytest.approx([(1 - gamma) + gamma * 2, (1 - gamma) + gamma * 4], rel=1e-6)


def test_the_late_model_counts_not_its_change() -> None:
    params = torch.tensor([10.0, 10.0])
    found = updates([2.0], [[0.0, 0.0]], [[0.0, 0.0]], [1.0])
    assert float(merged(staleness.mix_stale_models(), 1, params, found)[0]) < 10.0


def test_the_mixing_share_stops_at_its_maximum() -> None:
    params = torch.tensor([0.0, 0.0])
    found = updates([0.0], [[0.0, 0.0]], [[1.0, 1.0]], [1.0])
    assert merged(staleness.mix_stale_models(maximum=0.9), 10_000, params, found).tolist() == pytest.approx([0.1, 0.1])


def test_per_layer_shares_leave_untrained_layers_to_the_global_model() -> None:
    params = torch.tensor([1.0, 1.0])
    found = updates([0.0, 1.0], [[1.0, 1.0], [0.0, 0.0]], [[0.0, 2.0], [4.0, 4.0]], [1.0, 1.0])
    found = replace(found, trained=torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
    got = merged(staleness.mix_stale_models(alpha=0.5, slope=0.0, whole=False), 1, params, found)
    gamma = 0.5 * 0.6 * (1 - sigmoid(1)) / (1.6 * (1 - sigmoid(1)))
    assert got.tolist() == pytest.approx([1 + gamma * 3, 1 + 0.5 * 2 + gamma * 3], rel=1e-6)


# ------------------------------------------------------------------------------------- FedAsync and FedBuff


def test_staleness_functions() -> None:
    age = torch.tensor([0.0, 3.0, 8.0])
    assert staleness.discount("constant", 0.5, 4)(age).tolist() == [1.0, 1.0, 1.0]
    assert staleness.discount("polynomial", 0.5, 4)(age).tolist() == pytest.approx([1.0, 0.5, 1 / 3])
    assert staleness.discount("hinge", 0.5, 4)(age).tolist() == pytest.approx([1.0, 1.0, 1 / 3])
    with pytest.raises(InputError, match="constant, polynomial, hinge"):
        staleness.discount("linear", 1, 1)


def test_fedasync_mixes_models_one_after_the_other() -> None:
    params = torch.tensor([0.0, 0.0])
    found = updates([0.0, 3.0], [[0.0, 0.0], [1.0, 1.0]], [[1.0, 2.0], [1.0, 1.0]], [1.0, 1.0])
    got = merged(staleness.mix_by_staleness(alpha=0.6), 1, params, found)
    first = 0.6 * 1.0
    assert float(got[0]) == pytest.approx(0.7 * first + 0.3 * 2.0)


def test_fedbuff_adds_discounted_changes() -> None:
    params = torch.tensor([5.0, 5.0])
    found = updates([0.0, 3.0], [[0.0, 0.0], [9.0, 9.0]], [[1.0, 2.0], [1.0, 1.0]], [1.0, 99.0])
    got = merged(staleness.add_stale_changes(lr=2.0), 1, params, found)
    assert got.tolist() == pytest.approx([5 + (1.0 + 0.5), 5 + (2.0 + 0.5)])


WORLD = {"fleet": "uniform_spread", "clients": 8, "cohort": 4, "rounds": 6, "model": "mlp(hidden=[8])"}


def test_fedbuff_with_a_buffer_of_one_equals_fedasync_on_changes() -> None:
    one = run_recipe("digits", **WORLD, method="fedbuff(buffer=1, lr=0.6)")
    other = run_recipe("digits", **WORLD, method="fedasync(alpha=0.6, on='changes')")
    assert sum(len(record.staleness) for record in one.records) > 0
    assert torch.equal(one.params, other.params)


def test_fedbuff_with_a_buffer_of_one_equals_fedasync_where_nothing_is_stale() -> None:
    one = run_recipe("digits", **WORLD, method="fedbuff(buffer=1, lr=0.6, concurrency=1)")
    other = run_recipe("digits", **WORLD, method="fedasync(alpha=0.6, concurrency=1)")
    assert torch.equal(one.params, other.params)
    stale = run_recipe("digits", **WORLD, method="fedasync(alpha=0.6)")
    assert not torch.equal(stale.params, run_recipe("digits", **WORLD, method="fedbuff(buffer=1, lr=0.6)").params)


def test_weighing_by_age_in_late_rounds() -> None:
    late = {**WORLD, "fleet": "delay(probability=0.5, maximum_rounds=2)", "protocol": "late"}
    plain = run_recipe("digits", **late, method="fedavg")
    same = run_recipe("digits", **late, method="fedavg+staleness_weight(kind='constant')")
    less = run_recipe("digits", **late, method="fedavg+staleness_weight(a=2.0)")
    assert torch.equal(plain.params, same.params)
    assert not torch.equal(plain.params, less.params)


# ------------------------------------------------------------------------------------- whole rounds, slowly


LOST, HELD = {(1, 1)}, {(2, 1): 1, (2, 2): 1, (0, 2): 2}  # (client, round), and by how many rounds


def local(e: Experiment, client: int, t: int, start: Tensor) -> Tensor:
    """What one client makes of a model in round t."""
    epochs, key = e.recipe.epochs, e.key.fold("client", t, client)
    task = Assignment("", client, t, Weights(start), NOTHING, {}, epochs, epochs, False, e.recipe.lr, key)
    return start + run_task(e.site, task, e.site.facts([task]).row(0), None).report.payload


def mixed_by_hand(w: Tensor, share: float, late: list[tuple[int, Tensor]], fresh: list[tuple[float, Tensor]]) -> Tensor:
    """Equations 6-11: the global model, late models with their ages, fresh ones with their samples."""
    alpha_raw = 1 - sigmoid(1)
    raw = [0.6 * (1 - sigmoid(age)) for age, _ in late]
    scale = share / (alpha_raw + sum(raw))
    new = alpha_raw * scale * w
    for gamma, (_, model) in zip(raw, late, strict=True):
        new = new + gamma * scale * model
    total = sum(n for n, _ in fresh)
    for n, model in fresh:
        new = new + (1 - share) * n / total * model
    return new


def test_rounds_of_asynchronous_ama_against_a_slow_oracle() -> None:
    held = tuple((client, t, rounds) for (client, t), rounds in HELD.items())
    fates = Chosen((1.0, 2.0, 1.5), lost=frozenset(LOST), held=held)
    run = run_of(fleet_of(fates), "late", staleness.mix_stale_models(alpha=0.2, slope=0.05), rounds=4)
    w = run.fed.weights.value.clone()
    run.go()
    waiting: list[tuple[int, int, Tensor]] = []  # arrives in round, trained in round, model
    for t in range(1, 5):
        fresh: list[tuple[float, Tensor]] = []
        for client in range(3):
            model = local(run.experiment, client, t, w)
            if (client, t) in HELD:
                waiting.append((t + HELD[client, t], t, model))
            elif (client, t) not in LOST:
                fresh.append((float(run.experiment.data.sizes[client]), model))
        late = [(t - number, model) for due, number, model in waiting if due == t]
        w = mixed_by_hand(w, 0.2 + 0.05 * t, late, fresh)
    assert torch.allclose(run.fed.weights.value, w, atol=1e-6)


# ------------------------------------------------------------------------------------- SAFA and FedAT


def test_safa_averages_the_last_model_of_everybody() -> None:
    part = staleness.cached_models()
    params = torch.tensor([1.0, 1.0])
    s = filled(part.init)(Setting(NET, params, 3, n=torch.tensor([1.0, 1.0, 2.0])))
    found = updates([0.0], [[1.0, 1.0]], [[4.0, 0.0]], [1.0])
    s = filled(part.observe)(s, at(1), found)
    assert filled(part.merge)(s, at(1), params, found, found.n).tolist() == pytest.approx([0.25 * 5 + 0.75, 1.0])
    assert filled(part.merge)(s, at(1)._replace(dropped=(0, 1)), params * 3, found, found.n).tolist() == pytest.approx(
        [
            0.25 * 5 + 0.25 * 3 + 0.5,
            0.25 + 0.25 * 3 + 0.5,
        ]  # client 0 is heard of, client 1 counts with the global model
    )
    gone = Outcomes(
        torch.tensor([1, 2, 2]), torch.tensor([1, 1, 1]), *(torch.tensor([0.0, 0.0, 1.0]) for _ in range(4))
    )
    s = filled(part.conclude)(s, at(1), gone)
    assert s["deprecated"].tolist() == [0.0, 1.0, 0.0]
    _, s = filled(part.step)(s, at(2), params * 7, params, found)
    assert s["models"].tolist() == [[5.0, 1.0], [7.0, 7.0], [1.0, 1.0]]
    assert filled(part.conclude)(s, at(2), gone)["deprecated"].sum() == 0, "they were counted when the round was merged"


def test_fedat_weighs_slow_tiers_by_the_mergings_of_fast_ones() -> None:
    part = staleness.tier_models(tiers=2)
    params = torch.tensor([0.0, 0.0])
    s = filled(part.init)(Setting(NET, params, 2, seconds=torch.tensor([5.0, 1.0])))
    assert s["tier_of"].tolist() == [1, 0]
    fast = replace(updates([0.0], [[0.0, 0.0]], [[1.0, 1.0]], [1.0]), ids=torch.tensor([1]))
    slow = replace(updates([2.0], [[0.0, 0.0]], [[4.0, 4.0]], [1.0]), ids=torch.tensor([0]))
    new, s = filled(part.step)(s, at(1), params, params + 1.0, fast)
    assert new.tolist() == [0.0, 0.0]  # all weight is on the slow tier, which has not been heard of
    new, s = filled(part.step)(s, at(2), new, new + 1.0, fast)
    new, s = filled(part.step)(s, at(3), new, new + 4.0, slow)
    assert new.tolist() == pytest.approx([1 / 3 * 1 + 2 / 3 * 4] * 2)
