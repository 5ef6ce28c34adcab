"""The batched executor against the loop executor, path by path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from motley.bench.agreement import tiny_experiment
from motley.bench.cases import case_named, make_data, make_site, make_tasks
from motley.client.minibatch import minibatches
from motley.client.optimizer import SGD
from motley.client.site import Site
from motley.core.keys import Key
from motley.core.part import Part, compose
from motley.core.tasks import Assignment, Weights
from motley.core.types import Client, Data, Mine, Tree
from motley.engine.batched.assemble import Assembler
from motley.engine.batched.cpu import RATIO
from motley.engine.batched.group import Group
from motley.engine.batched.minibatches import Batches, ladder, table
from motley.engine.batched.together import Batched
from motley.methods import make_method
from motley.runtime.experiment import Experiment
from tests.engine.work import LANES, OnCpu, batched, by_loop, gap, reports, tasks_of

METHODS = ("fedavg", "fedprox(mu=1.0)", "scaffold", "rebafl", "fes", "fedbabu")


OPTIMIZERS = (
    "sgd",
    "sgd(momentum=0.9, weight_decay=0.01)",
    "adam",
    "adamw(weight_decay=0.1)",
    "rmsprop(momentum=0.5)",
    "adagrad",
)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_it_is_the_loop(method: str, optimizer: str) -> None:
    e = tiny_experiment(make_method(method), "mlp", optimizer=optimizer)
    tasks = tasks_of(e)
    together, alone = reports(batched(e), tasks), by_loop(e, tasks)
    assert gap(together, alone) < 2e-5
    for ours, theirs in zip(together, alone, strict=True):
        assert torch.equal(ours.trained, theirs.trained)
        assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=1e-4)
        assert (ours.n, ours.epochs, ours.steps, ours.width) == (theirs.n, theirs.epochs, theirs.steps, theirs.width)


def test_tasks_keep_their_start() -> None:
    e = tiny_experiment(make_method("fedavg"), "mlp")
    tasks = tasks_of(e)
    before = tasks[0].start.value.clone()
    reports(batched(e), tasks)
    assert torch.equal(tasks[0].start.value, before)


@pytest.mark.parametrize("lane", LANES)
def test_clients_with_starts_of_their_own(lane: str) -> None:
    e = tiny_experiment(make_method("fedprox"), "mlp")
    tasks = [a._replace(start=Weights(a.start.value + 0.1 * a.client)) for a in tasks_of(e)]
    assert gap(reports(batched(e, lane), tasks), by_loop(e, tasks)) < 2e-5


def test_equal_contents_are_shared_by_a_group_whichever_objects_hold_them() -> None:
    e = tiny_experiment(make_method("scaffold"), "mlp")
    one, *others = tasks_of(e)

    def again(a: Assignment) -> Assignment:
        return a._replace(start=Weights(a.start.value.clone()), down=type(a.down)(a.down.tree))

    tasks = [one, *map(again, others)]
    for a in tasks:
        assert (a.start.ref, a.down.ref) == (one.start.ref, one.down.ref)
    assert group_of(e, tasks).shared == (True, True)
    other = tasks[1]._replace(start=Weights(one.start.value + 1.0))
    assert group_of(e, [one, other]).shared == (False, True)
    assert torch.equal(
        *(torch.stack([r.payload for r in reports(batched(e), some)]) for some in (tasks, tasks_of(e)))
    )  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_captured_path(method: str) -> None:
    e = tiny_experiment(make_method(method), "mlp", optimizer="sgd(momentum=0.9)")
    tasks = tasks_of(e)
    made = batched(e, "gpu")
    loop = by_loop(e, tasks)
    assert gap(reports(made, tasks), loop) < 2e-5
    assert gap(reports(made, tasks), loop) < 2e-5, "buffers are used again"


def freezing() -> Part:
    """After its first epoch a client stops training its first layer; it counts epochs, and shrinks with each."""

    def begin(c: Client, me: Mine, data: Data) -> Client:
        return me.note(c, {"epochs": torch.zeros_like(c.loss), "losses": torch.zeros_like(c.loss)})

    def epoch(c: Client, me: Mine) -> Client:
        first = torch.arange(len(c.trained), device=c.trained.device) == 0
        noted = {"epochs": me.notes["epochs"] + 1, "losses": me.notes["losses"] + c.loss}
        return me.note(c.with_(trained=torch.where(first, 0.0, c.trained), params=0.9 * c.params), noted)

    def report(c: Client, me: Mine, data: Data) -> tuple[Client, Tree]:
        return c, me.notes

    return Part(name="freezing", begin=begin, epoch=epoch, report=report)


@pytest.mark.parametrize("lane", LANES)
def test_epoch_hooks(lane: str) -> None:
    e = tiny_experiment(compose(freezing()), "mlp")
    tasks = tasks_of(e)
    ours, theirs = reports(batched(e, lane), tasks), by_loop(e, tasks)
    assert gap(ours, theirs) < 2e-5
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.trained, b.trained)
        assert float(a.extras["freezing"]["epochs"]) == float(b.extras["freezing"]["epochs"])
        assert float(a.extras["freezing"]["losses"]) == pytest.approx(float(b.extras["freezing"]["losses"]), rel=1e-4)


def counting() -> Part:
    """Notes the number of its step in every step, and reports it with where the client stands at the end."""

    def gradient(c: Client, me: Mine, grad: Tensor) -> Tensor:
        return grad + c.step * 1e-3

    def report(c: Client, me: Mine, data: Data) -> tuple[Client, Tree]:
        return c, {"step": c.step, "epoch": c.epoch}

    return Part(name="counting", gradient=gradient, report=report)


@pytest.mark.parametrize("lane", LANES)
def test_hooks_know_the_step(lane: str) -> None:
    e = tiny_experiment(compose(counting()), "mlp")
    tasks = tasks_of(e)
    ours, theirs = reports(batched(e, lane), tasks), by_loop(e, tasks)
    assert gap(ours, theirs) < 2e-5
    assert [int(one.extras["counting"]["step"]) for one in ours] == [9, 7, 4, 4, 2, 1]
    for a, b in zip(ours, theirs, strict=True):
        assert float(a.extras["counting"]["epoch"]) == float(b.extras["counting"]["epoch"])


def group_of(e: Experiment, tasks: Sequence[Assignment], lane: str = "cpu") -> Group:
    """The tasks as the executor trains them together."""
    made = LANES[lane](e.site)
    return made.assemble(list(tasks), e.site.facts(tasks), lambda client: None, len(tasks))


def test_whose_epoch_ends() -> None:
    """Of three clients with 2, 3 and 2 steps an epoch; the last one stops in its first and is in the batch still."""
    e = tiny_experiment(make_method("fedavg"), "mlp")
    group = group_of(e, tasks_of(e, steps=(4, 3, 1), clients=(0, 4, 2)))
    assert group.epoch_steps == [2, 3, 2]
    assert [group.ended(s, 3) for s in range(4)] == [[], [0], [1], [0]]
    assert group.ended(2, 1) == []


def test_masked_spans_leave_frozen_layers_alone() -> None:
    e = tiny_experiment(make_method("fes"), "cnn")
    tasks = tasks_of(e)
    for report, a in zip(reports(batched(e), tasks), tasks, strict=True):
        change = e.net.layout.per_layer_sum(report.payload.abs())
        assert torch.equal(change > 0, report.trained > 0)
        assert bool(report.trained.all()) == (not e.fleet.limited[a.client])


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 23), min_size=1, max_size=6),
    batch_size=st.integers(1, 7),
    steps=st.lists(st.integers(1, 12), min_size=6, max_size=6),
    seed=st.integers(0, 99),
)
def test_tables_are_the_minibatches(sizes: list[int], batch_size: int, steps: list[int], seed: int) -> None:
    keys = torch.stack([Key.root(seed).fold(i).tensor() for i in range(len(sizes))])
    index = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(seed))
    offsets = torch.tensor([0, *np.cumsum(sizes)[:-1]])
    wanted = torch.tensor(steps[: len(sizes)])
    drawn = table(keys, index, offsets, torch.tensor(sizes), wanted, batch_size)
    for k, n in enumerate(sizes):
        mine = index[offsets[k] : offsets[k] + n]
        data = Data(mine, mine)
        for s, (batch, _) in enumerate(minibatches(keys[k], data, batch_size, steps[k])):
            row = drawn.rows[s, k]
            kept = row if drawn.mask is None else row[drawn.mask[s, k] > 0]
            assert kept.tolist() == batch.y.tolist()


def test_parts_of_a_table() -> None:
    keys = torch.stack([Key.root(3).fold(i).tensor() for i in range(4)])
    sizes, steps = torch.tensor([300, 40, 9, 2]), torch.tensor([60, 20, 8, 3])
    offsets = sizes.cumsum(0) - sizes
    batches = Batches(keys, torch.arange(int(sizes.sum())), offsets, sizes, steps, 10)
    whole, part = batches.table(0, 60, 4), batches.table(5, 9, 2)
    assert whole.mask is not None
    assert part.mask is not None
    assert torch.equal(whole.rows[5:9, :2], part.rows)
    assert torch.equal(whole.mask[5:9, :2], part.mask)


@pytest.mark.parametrize("k", [1, 2, 7, 30, 1000])
@pytest.mark.parametrize("ratio", [1.06, 1.125])
def test_ladder(k: int, ratio: float) -> None:
    widths = ladder(k, ratio)
    assert widths[0] == 1
    assert widths[-1] == k
    assert all(a < b <= max(a + 1, a * ratio) for a, b in pairwise(widths))


@pytest.mark.parametrize("method", ["fedavg", "radfedi", "rebafl"])
def test_rounds_that_bring_their_clients_samples_along_train_the_same(method: str) -> None:
    """As on a GPU, which holds no list of what all clients of a population hold."""
    e = tiny_experiment(make_method(method), "mlp")
    tasks = tasks_of(e)
    lane = OnCpu(e.site)
    lane.assemble = Assembler(e.training, e.data.partition, lane.device, apart=True)
    group = lane.assemble(tasks, e.site.facts(tasks), lambda client: None, len(tasks))
    drawn = group.drawn
    assert len(drawn.pool) == sum(e.data.sizes[:6])
    for a, begin, n in zip(tasks, drawn.offsets.tolist(), group.samples, strict=True):
        assert drawn.pool[begin : begin + n].tolist() == e.data.partition[a.client].tolist()
    assert drawn.pool.data_ptr() % 16 == group.facts.client.data_ptr() % 16  # wide loads
    ours, theirs = reports(Batched(e.site, "cpu", lane), tasks), reports(batched(e), tasks)
    assert all(torch.equal(a.payload, b.payload) for a, b in zip(ours, theirs, strict=True))


def test_phases_narrow_as_clients_finish() -> None:
    e = tiny_experiment(make_method("fedavg"), "mlp")
    group = group_of(e, tasks_of(e))
    phases = group.phases(RATIO)
    assert phases == [(6, 1), (5, 2), (4, 4), (2, 7), (1, 9)]
    # Whole epochs of 7, 16, 5, 21, 10 and 13 samples in minibatches of 4, and the epoch begun.
    wanted = (4 * 7 + 4) + (16 + 12) + 2 * 5 + 16 + 8 + 4
    assert group.waste(4, phases) == (wanted, 4 * (6 + 5 + 2 * 4 + 3 * 2 + 2 * 1))


@pytest.fixture(scope="module")
def power_law() -> tuple[Site, list[Assignment]]:
    case = replace(case_named("fedsae_logistic"), shape=(1, 3, 3), epochs=2)
    site = make_site(case, make_data(case, Key.root(0)), Key.root(1))
    return site, make_tasks(case, Weights(site.training.net.initial()), Key.root(2), 1)


@pytest.mark.parametrize("lane", LANES)
def test_little_is_computed_in_vain_on_a_power_law(lane: str, power_law: tuple[Site, list[Assignment]]) -> None:
    site, tasks = power_law
    made = Batched(site, "cpu", LANES[lane](site))
    reports(made, tasks)
    wanted = sum(2 * int(site.data.sizes[a.client]) for a in tasks)  # two whole epochs each
    assert made.waste.wanted == wanted
    assert made.waste.computed >= wanted
    assert made.waste.share < 0.15


def test_few_traces_serve_many_widths(power_law: tuple[Site, list[Assignment]]) -> None:
    site, tasks = power_law
    site = replace(site, training=replace(site.training, optimizer=SGD(momentum=0.9)))
    lane = OnCpu(site)
    made = Batched(site, "cpu", lane)
    reports(made, tasks)
    reports(made, tasks[:7])
    assert len(lane.traced) == 1


def test_what_is_measured_after_training_is_each_clients_own() -> None:
    """Clients with more minibatches than others train for fewer steps here, so that the two orders differ."""
    e = tiny_experiment(make_method("importance"), "mlp")
    tasks = tasks_of(e, steps=(9, 1, 7, 2, 4, 3))
    alone = [float(one.extras["importance"]) for one in by_loop(e, tasks)]
    together = [float(one.extras["importance"]) for one in reports(batched(e), tasks)]
    assert together == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("lane", LANES)
def test_minibatches_are_measured_some_at_a_time(lane: str) -> None:
    """By the mean squared gradient that `importance` has its clients report."""
    e = tiny_experiment(make_method("radfedi"), "mlp")
    tasks = tasks_of(e)
    made = LANES[lane](e.site)
    made.together = 17  # for which a GPU takes 18
    assert sum(-(-int(e.data.sizes[a.client]) // e.training.batch_size) for a in tasks) > 17
    found = reports(Batched(e.site, "cpu", made), tasks)
    for ours, theirs in zip(found, by_loop(e, tasks), strict=True):
        torch.testing.assert_close(ours.extras["importance"], theirs.extras["importance"], rtol=1e-4, atol=1e-6)
