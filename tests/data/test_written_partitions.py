"""Partitions as lists of samples, clients without samples, and clients' own test samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import motley
from motley.core.errors import DataError, PartitionError
from motley.core.keys import Key
from motley.data.adapters import from_clients
from motley.data.federated import FederatedData, Partition
from motley.data.own_tests import hold_out
from motley.data.partitions.lists import from_lists
from motley.runtime.experiment import prepare
from motley.runtime.fairness import worst_share
from motley.runtime.own_scores import own_scores, scores_by_client
from motley.runtime.recipe import load
from tests.tiny import data, dataset

BASE: dict[str, Any] = {
    "data": "digits", "cohort": 3, "rounds": 2, "model": "mlp(hidden=[8])", "executor": "loop",
}  # fmt: skip
LISTS = [[0, 1, 2, 3, 4, 5], [10, 11, 12], [20, 21, 22, 23], []]


# ------------------------------------------------------------------------------------------ lists


def test_lists_say_who_holds_what(tmp_path: Path) -> None:
    whole = dataset()
    net = nn.Linear(9, 4)
    result = motley.train(net, whole, partition=LISTS[:3], cohort=2, rounds=2)
    assert (result.recipe.partition, result.recipe.clients) == ("given", 3)
    divided = FederatedData(whole, Partition.of([np.array(one) for one in LISTS[:3]]))
    same = motley.train(net, divided, cohort=2, rounds=2)
    assert result.summary["model_sha256"] == same.summary["model_sha256"]


def test_a_file_in_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "who.json"
    path.write_text(json.dumps(LISTS[:3]))
    recipe = load({**BASE, "partition": f"lists(path='{path}')"})
    assert prepare(recipe).data.partition[1].tolist() == [10, 11, 12]
    path.write_text(json.dumps([[5, 7], [1]]))
    assert prepare(recipe).data.sizes.tolist() == [2, 1]  # what was remembered is not taken for the new file


def test_samples_may_be_shared_or_left_out() -> None:
    assert from_lists([[0, 1], [1, 2]], 4).shared
    assert not from_lists([[0, 1], [2]], 4).shared


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[0, 4]], r"names sample 4, but training samples are 0..3"),
        ([[0], [-1]], "Client 1 of the partition names sample -1"),
        ([[0, 0]], "names a sample twice"),
        ([[0.5]], "needs a list of whole numbers"),
        ([0, 1], "needs a list of whole numbers"),
        ([[[0]]], "needs a list of whole numbers"),
        ([], "at least one list"),
        ([[], []], "No client of this partition holds a sample"),
    ],
)
def test_lists_that_cannot_be(lists: list[Any], message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        from_lists(lists, 4)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match="cannot be read: No such file"):
        motley.run(BASE, partition="lists(path='none.json')")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(PartitionError, match="is not valid JSON"):
        motley.run(BASE, partition=f"lists(path='{tmp_path / 'bad.json'}')")


def test_lists_need_samples_that_have_numbers() -> None:
    x, y = torch.randn(20, 9), torch.arange(20) % 4
    with pytest.raises(DataError, match="the test samples must be given apart"):
        motley.train(nn.Linear(9, 4), (x, y), partition=[[0, 1], [2]], rounds=1, cohort=1)
    assert motley.train(nn.Linear(9, 4), (x, y), test=(x, y), partition=[[0, 1], [2]], rounds=1, cohort=1).scores
    with pytest.raises(DataError, match="divided among clients already"):
        motley.train(nn.Linear(9, 4), data(), partition=[[0]], rounds=1, cohort=1)
    with pytest.raises(DataError, match="leave out 'public'"):
        motley.train(nn.Linear(9, 4), dataset(), partition=[[0]], public="held(fraction=0.2)", rounds=1, cohort=1)


# ------------------------------------------------------------------------------------------ clients without samples


def test_empty_clients_are_refused_unless_they_are_allowed() -> None:
    asked: dict[str, Any] = {"model": nn.Linear(9, 4), "data": dataset(), "partition": LISTS, "cohort": 4, "rounds": 3}
    with pytest.raises(PartitionError, match=r"Client 3 would get no sample \(1 of 4 clients\).*empty_clients=allow"):
        motley.train(**asked)
    result = motley.train(**asked, empty_clients="allow")
    assert [record.participants for record in result.records] == [3, 3, 3]  # client 3 is never there


@pytest.mark.parametrize("executor", ["loop", "pool(workers=2)", "batched"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedasync"])
def test_runs_with_empty_clients(method: str, executor: str) -> None:
    whole = dataset()
    lists: list[list[int]] = [[], list(range(20)), [], list(range(20, 50)), list(range(50, 60))]
    asked: dict[str, Any] = {"partition": lists, "empty_clients": "allow", "method": method, "cohort": 3, "rounds": 3}
    fleet = "uniform_spread(ratio=3)+bernoulli(p=0.6)"
    result = motley.train("mlp(hidden=[4])", whole, **asked, fleet=fleet, executor=executor, diagnostics=["service"])
    assert result.summary["fairness"]["jain_chosen"] < 0.7
    assert 0 <= result.records[-1].extra["client_accuracy"] <= 1


def test_a_home_without_samples_is_a_client_too() -> None:
    x, y = torch.randn(20, 9), torch.arange(20) % 4
    homes = [(x[:10], y[:10]), (x[:0], y[:0]), (x[10:], y[10:])]
    with pytest.raises(PartitionError, match="Client 1 would get no sample"):
        motley.train(nn.Linear(9, 4), homes, test=(x, y), rounds=1, cohort=2)
    result = motley.train(nn.Linear(9, 4), homes, test=(x, y), rounds=1, cohort=3, empty_clients="allow")
    assert result.records[0].participants == 2


@pytest.mark.parametrize("homes", [False, True])
def test_the_first_client_may_be_the_empty_one(homes: bool) -> None:
    """Also where a few steps are timed to choose an executor."""
    x, y = torch.randn(20, 9), torch.arange(20) % 4
    lists: list[list[int]] = [[], list(range(20))]
    divided = [(x[:0], y[:0]), (x, y)]
    more: dict[str, Any] = {"empty_clients": "allow", "rounds": 1, "cohort": 2, "test": (x, y), "executor": "auto"}
    how: dict[str, Any] = {"data": divided} if homes else {"data": (x, y), "partition": lists}
    result = motley.train(nn.Linear(9, 4), **how, **more)
    assert result.records[0].participants == 1


# ------------------------------------------------------------------------------------------ clients' own test samples


def test_a_share_of_each_clients_samples_is_held_out() -> None:
    whole = data()
    apart = hold_out(whole, 0.25, Key.root(0))
    own = apart.own_tests
    assert own is not None
    assert own.sizes.tolist() == [2, 4, 1, 5, 2, 3]  # a quarter of 7, 16, 5, 21, 10, 13, rounded
    for client in range(whole.n_clients):
        both = [*apart.partition[client], *own.partition[client]]
        assert sorted(both) == sorted(whole.partition[client])


def test_a_client_with_one_sample_keeps_it() -> None:
    one = FederatedData(dataset(), from_lists([[0], [1, 2], [], [3, 4, 5]], 40))
    apart = hold_out(one, 0.9, Key.root(0))
    assert apart.sizes.tolist() == [1, 1, 0, 1]
    assert apart.own_tests is not None
    assert apart.own_tests.sizes.tolist() == [0, 1, 0, 2]


def test_scores_of_each_client_against_a_slow_count() -> None:
    e = prepare(load({**BASE, "clients": 12, "client_test": 0.2, "skew": "rotation(degrees=[0, 90])"}))
    own = e.data.own_tests
    assert own is not None
    params = torch.randn(e.net.size, generator=torch.Generator().manual_seed(1)) / 5
    expected = []
    for client in range(12):
        mine = own.client(client)
        expected.append(float((e.net(params, mine.x).logits.argmax(1) == mine.y).double().mean()))
    found = scores_by_client(e.net, e.problem, params, own)
    assert found["accuracy"] == pytest.approx(expected)
    told = own_scores(e.net, e.problem, params, own)
    assert told["own_scores"] == pytest.approx(expected, abs=1e-6)
    assert told["own_accuracy"] == pytest.approx(np.mean(expected))
    assert told["own_accuracy_deviation"] == pytest.approx(np.std(expected))
    assert told["own_accuracy_worst_decile"] == pytest.approx(worst_share(expected))
    assert told["own_loss"] == pytest.approx(np.mean(found["loss"]))


def test_a_run_records_them_beside_the_pooled_score(tmp_path: Path) -> None:
    asked = {**BASE, "clients": 10, "client_test": 0.2, "evaluate_every": 2, "rounds": 3}
    result = motley.run(asked, tmp_path / "run")
    assert ["own_accuracy" in record.extra for record in result.records] == [False, True, True]
    last = motley.resume(tmp_path / "run").records[-1]
    assert len(last.extra["own_scores"]) == 10
    assert 0 < last.extra["own_accuracy_worst_decile"] <= last.extra["own_accuracy"] <= 1
    assert motley.run(asked, stop="own_accuracy_worst_decile>=0", rounds=9).summary["rounds"] == 2


def test_where_less_is_better_the_worst_are_the_largest() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    homes = [(x[i::6], x[i::6].sum(1) * (1 + i)) for i in range(6)]
    problem = motley.Problem(lambda o, y: (o.squeeze(-1) - y) ** 2, name="gap")
    result = motley.train(nn.Linear(3, 1), homes, test=homes, problem=problem, rounds=2, cohort=3, lr=0.01)
    extra = result.records[-1].extra
    assert extra["own_loss_worst_decile"] == pytest.approx(max(extra["own_scores"]), abs=1e-5)
    assert extra["own_loss"] == pytest.approx(np.mean(extra["own_scores"]), abs=1e-5)
    assert result.scores["loss"] == pytest.approx(extra["own_loss"], rel=1e-4)  # six homes of equal size


def test_test_samples_of_homes_must_be_for_all_of_them() -> None:
    x, y = torch.randn(20, 9), torch.arange(20) % 4
    homes = [(x[:10], y[:10]), (x[10:], y[10:])]
    with pytest.raises(PartitionError, match="test samples for 1 clients, but data of 2"):
        motley.train(nn.Linear(9, 4), homes, test=[(x, y)], rounds=1, cohort=1)
    with pytest.raises(PartitionError, match="share samples"):
        motley.run(BASE, clients=5, partition="drawn(samples=50)", client_test=0.1)
    assert from_clients(homes, (x, y)).own_tests is None
