"""The protocol mediators: GANDALF's Algorithm 3 from its equations, walks that fail, what it goes together with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import motley
from motley.core.errors import InputError, PartitionError
from motley.core.part import compose
from motley.fleet.fleet import Fleet
from motley.methods import make_method
from motley.runtime.experiment import Given, prepare
from motley.runtime.launch import Result, Run, launch, resume
from motley.server.grouping import towards_uniform
from tests import tiny
from tests.protocol.world import Chosen, fleet_of, trace

SMALL: dict[str, Any] = {
    "data": "digits",
    "partition": "classes(per_client=2)",
    "clients": 10,
    "model": "mlp(hidden=[12])",
    "rounds": 4,
    "epochs": 1.0,
    "batch_size": 32,
    "protocol": "mediators",
    "options": {"groups": 3},
    "executor": "loop",
    "checkpoint_seconds": 0.0,
}
FATES = "loss(probability=0.2)+bernoulli(p=0.8)"


def made(fleet: Fleet, listeners: Any = (), **changes: Any) -> Run:
    """A run on the tiny data with one local epoch of all samples at once."""
    options = changes.pop("options", {"groups": 2})
    method = compose(make_method(changes.pop("method", "fedavg")), protocol="mediators", options=options)
    recipe = tiny.recipe(**{"batch_size": 64, "epochs": 2.0, **changes})
    data = tiny.data()
    return Run(prepare(recipe, Given(data, tiny.network(data), method, fleet)), None, listeners)


def same(a: Result, b: Result) -> bool:
    return bool(a.summary["model_sha256"] == b.summary["model_sha256"])


# ------------------------------------------------------------------ Algorithm 3 from its equations
def by_the_equations(lost: set[tuple[int, int]], rounds: int, passes: int) -> Tensor:
    """Line by line, with full batches, on a table of completed tasks; who fails in a round fails every time."""
    data = tiny.data()
    net = tiny.network(data)
    teams = towards_uniform(data.labels.astype(float), 2)
    completed = dict.fromkeys(range(data.n_clients), 0)
    w = net.initial()
    for r in range(1, rounds + 1):
        deltas, sizes = [], []
        for team in teams:
            w_m, n_m, visits = w.clone(), 0.0, dict.fromkeys(team, 0)
            for _ in range(passes * len(team)):
                able = [i for i in team if visits[i] < passes]
                i = min(able, key=lambda i: (completed[i], i))
                visits[i] += 1
                if (i, r) in lost:
                    continue
                x, y = data.client(i).x, data.client(i).y
                for _ in range(2):
                    free = w_m.clone().requires_grad_()
                    (g,) = torch.autograd.grad(cross_entropy(net(free, x).logits, y), free)
                    w_m = w_m - 0.1 * g
                completed[i] += 1
                n_m += len(y)
            deltas.append(w_m - w)
            sizes.append(n_m)
        n = sum(sizes)
        w = w + sum(d * (n_m / n) for d, n_m in zip(deltas, sizes, strict=True))
    return w


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("lost", [set(), {(0, 1), (3, 1), (3, 2), (5, 3)}])
def test_rounds_are_those_of_the_equations(lost: set[tuple[int, int]], passes: int) -> None:
    fleet = fleet_of(Chosen(seconds=(1.0,) * 6, lost=frozenset(lost)))
    found = made(fleet, rounds=3, options={"groups": 2, "passes": passes}).go()
    torch.testing.assert_close(found.params, by_the_equations(lost, 3, passes), atol=1e-6, rtol=1e-5)


def test_one_group_of_each_client_is_fedavg() -> None:
    walked = motley.run(SMALL, options={"groups": 10})
    averaged = motley.run(SMALL, protocol="synchronous", options={}, cohort=10)
    torch.testing.assert_close(walked.params, averaged.params, atol=1e-6, rtol=1e-5)


# ------------------------------------------------------------------ the walk, moment by moment
class Away:
    """Clients that are away between two moments."""

    def __init__(self, *spans: tuple[int, float, float]) -> None:
        self.spans = spans

    def __call__(self, number: int, now: float, here: Any) -> Any:
        for client, begin, end in self.spans:
            if begin <= now < end:
                here = here & (np.arange(len(here)) != client)
        return here


def walk(*away: tuple[int, float, float], lost: Any = (), seconds: Any = (1.0,) * 6, **changes: Any) -> Run:
    fleet = fleet_of(Chosen(seconds=tuple(seconds), lost=frozenset(lost))).meets(presence=Away(*away))
    return made(fleet, **{"rounds": 1, "options": {"groups": 1, "by": "random"}, **changes})


def counted(run: Run) -> tuple[int, int]:
    return run.records[0].extra["visits"], run.records[0].extra["rollbacks"]


def heads(lines: list[str]) -> list[str]:
    return [line for line in lines if "dispatch" in line]


def test_it_goes_from_client_to_client() -> None:
    run = walk()
    assert trace(run) == [
        *(line for t in range(6) for line in (f"{t} dispatch {t} 1", f"{t + 1} arrive {t} 1")),
        "6 aggregate 1",
    ]
    assert counted(run) == (6, 0)


def test_a_client_that_dies_is_skipped_and_the_walk_goes_on() -> None:
    run = walk(lost={(2, 1)})
    assert "3 lose 2 1" in trace(run)
    assert run.records[0].arrived == 5
    assert counted(run) == (6, 0)


def test_the_model_is_rolled_back_over_two_dead_holders() -> None:
    """1 and 2 hold the newest models and die: 3 hears nothing twice, and then gets that of client 0."""
    run = walk((1, 3.0, 99.0), (2, 3.0, 99.0))
    lines = trace(run)
    tries = ["3 dispatch 3 1", "4.5 dispatch 3 1", "6 dispatch 3 1"]  # unanswered for 1.5 seconds each
    assert [line for line in heads(lines) if " 3 " in line] == tries
    assert counted(run) == (6, 2)
    clients = run.experiment.data
    w = run.experiment.net.initial()
    start = w.clone()
    for i in (0, 3, 4, 5):
        w = _trained(run, w, clients.client(i).x, clients.client(i).y)
    torch.testing.assert_close(run.model, w, atol=1e-6, rtol=1e-5)
    assert not torch.equal(start, w)


def _trained(run: Run, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    for _ in range(2):
        free = w.clone().requires_grad_()
        (g,) = torch.autograd.grad(cross_entropy(run.experiment.net(free, x).logits, y), free)
        w = w - 0.1 * g
    return w


def test_at_the_end_the_newest_model_that_can_be_had_is_brought() -> None:
    run = walk((5, 6.0, 99.0), (4, 6.0, 99.0))
    trace(run)
    assert run.records[0].extra["rollbacks"] == 2


def test_nothing_is_left_where_all_holders_are_gone() -> None:
    run = walk(*((i, 6.0, 99.0) for i in range(6)), rounds=2)
    lines = trace(run)
    assert run.records[0].extra["rollbacks"] == 6
    assert len(heads(lines)) == 6


def test_through_the_server_nothing_is_rolled_back() -> None:
    options = {"groups": 1, "by": "random", "through": "server"}
    run = walk((1, 3.0, 99.0), (2, 3.0, 99.0), options=options)
    trace(run)
    assert counted(run) == (6, 0)
    size = 4 * run.experiment.net.size
    assert run.records[0].bytes_up == run.records[0].bytes_down == 6 * size


def test_between_clients_only_the_ends_pass_the_server() -> None:
    run = walk()
    trace(run)
    size = 4 * run.experiment.net.size
    assert (run.records[0].bytes_down, run.records[0].bytes_up) == (size, size)


def test_patience() -> None:
    """A client that takes longer than T_R is given up, and the walk goes on without it."""
    run = walk(seconds=(1, 1, 50, 1, 1, 1), options={"groups": 1, "by": "random", "patience": 4.0})
    lines = trace(run)
    assert "6 give up 2 1" in lines
    assert "6 dispatch 3 1" in lines
    assert run.records[0].late == 1


def test_cap_and_interval() -> None:
    """Three passes: a client may be chosen three times, but rests ten seconds in between."""
    options = {"groups": 3, "by": "random", "passes": 3, "pause": 10.0}
    run = walk(options=options)
    given: dict[int, list[float]] = {}
    for line in heads(trace(run)):
        moment, _, client, _ = line.split()
        given.setdefault(int(client), []).append(float(moment))
    assert {client: len(moments) for client, moments in given.items()} == dict.fromkeys(range(6), 3)
    assert all(float(np.diff(moments).min()) >= 10.0 for moments in given.values())


def test_a_larger_cap_gives_others_the_places_of_those_who_are_away() -> None:
    run = walk((0, 0.0, 99.0), options={"groups": 1, "by": "random", "most": 2})
    assert len(heads(trace(run))) == 6
    assert sorted(run.fed.ledger.chosen.tolist()) == [0, 1, 1, 1, 1, 2]


def test_who_has_done_least_comes_first_in_later_rounds() -> None:
    run = walk(lost={(2, 1), (4, 1)}, rounds=2)
    second = [int(line.split()[2]) for line in heads(trace(run)) if line.endswith(" 2")]
    assert second == [2, 4, 0, 1, 3, 5]


def test_a_fixed_sequence_asks_everybody_in_turn() -> None:
    options = {"groups": 1, "by": "random", "order": "fixed", "passes": 2}
    run = walk(lost={(2, 1), (4, 1)}, rounds=2, options=options)
    assert [int(line.split()[2]) for line in heads(trace(run))] == [0, 1, 2, 3, 4, 5] * 4


# ------------------------------------------------------------------ what it goes together with
@pytest.mark.parametrize("by", ["kl", "kmeans", "random", "by_speed"])
def test_every_rule_groups(by: str) -> None:
    result = motley.run(SMALL, options={"groups": 3, "by": by}, fleet="uniform_spread(ratio=5)")
    assert result.records[-1].extra["visits"] == 10
    assert torch.isfinite(result.params).all()


METHODS = ["fedprox(mu=0.5)", "scaffold", "rebafl", "ama_fes", "feddyn", "moon", "fedavgm", "fedsae_ira"]


@pytest.mark.parametrize("method", METHODS)
def test_it_goes_with_any_method(method: str) -> None:
    result = motley.run(SMALL, method=method, fleet=FATES)
    plain = motley.run(SMALL, fleet=FATES)
    assert torch.isfinite(result.params).all()
    assert not same(result, plain)


@pytest.mark.parametrize("method", ["fedavg", "scaffold+hand_over_noise(sigma=0.01)", "rebafl"])
def test_executors_agree(method: str) -> None:
    loop, pool, batched = (
        motley.run(SMALL, method=method, fleet=FATES, executor=name) for name in ("loop", "pool(workers=2)", "batched")
    )
    assert same(loop, pool)
    torch.testing.assert_close(loop.params, batched.params, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("method", ["scaffold+hand_over_noise(sigma=0.01)", "fedavg"])
def test_killed_and_resumed_to_the_same_model(method: str, tmp_path: Path) -> None:
    options = {"groups": 3, "pause": 0.01, "histogram_noise": 1.0}
    recipe = motley.runtime.recipe.load(SMALL, {"method": method, "fleet": FATES, "options": options, "rounds": 5})
    whole = launch(recipe)
    seen = 0

    def kill(record: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(recipe, tmp_path / "run", [kill])
    assert same(whole, resume(tmp_path / "run"))


def test_what_is_handed_on_went_over_the_wire() -> None:
    """With noise the second client starts from the noisy model, also where the server never sees it."""
    plain, noisy = (
        motley.run(SMALL, method=method, rounds=1, lr=1e-12, options={"groups": 1})
        for method in ("fedavg", "fedavg+hand_over_noise(sigma=0.1)")
    )
    assert (noisy.params - plain.params).std() == pytest.approx(0.1 * 10**0.5, rel=0.05)


# ------------------------------------------------------------------ bad input
def test_bad_input_gets_a_sentence() -> None:
    with pytest.raises(InputError, match=r"11 groups cannot be made of 10 clients; set options.groups to less"):
        motley.run(SMALL, options={"groups": 11})
    with pytest.raises(InputError, match=r"by='speed'; it must be one of 'kl', 'kmeans', 'random', 'by_speed'"):
        motley.run(SMALL, options={"by": "speed"})
    with pytest.raises(InputError, match="'mediators' has passes=0; it must be a whole number of at least 1"):
        motley.run(SMALL, options={"passes": 0})
    with pytest.raises(PartitionError, match="each needs at least one; use fewer clients"):
        motley.run(SMALL, clients=3000, partition="iid")
    with pytest.raises(InputError, match=r"Grouping by 'kl' needs to know how many samples of each class"):
        motley.train(torch.nn.Linear(3, 1), _numbers(), problem="regression", clients=6, protocol="mediators", rounds=1)


def _numbers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    return x, x[:, 0]
