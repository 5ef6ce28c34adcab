"""The batched executor against the loop executor, path by path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from motley.bench.agreement import tiny_experiment
from motley.bench.cases import case_named, make_data, make_jobs, make_training
from motley.client.optimizer import SGD
from motley.client.trainer import Outcome, Training, minibatches
from motley.core.errors import MemoryFullError
from motley.core.keys import Key
from motley.core.part import Method, Part, compose
from motley.core.types import Client, Data
from motley.methods import make_method
from motley.run.executors import batched as module
from motley.run.executors.base import FactsRow, Job
from motley.run.executors.batched import Batched
from motley.run.executors.crew import Crew, deal
from motley.run.executors.group import Group
from motley.run.executors.loop import Loop
from motley.run.executors.tables import Batches, ladder, table
from motley.run.experiment import Experiment
from motley.run.runner import Run

METHODS = ("fedavg", "fedprox(mu=1.0)", "scaffold", "rebafl", "fes", "fedbabu")
OPTIMIZERS = ("sgd", "sgd(momentum=0.9, weight_decay=0.01)", "adam")


def jobs_of(e: Experiment, steps: Sequence[int] = (9, 7, 4, 4, 2, 1)) -> list[Job]:
    """One job per client, each with its own number of steps."""
    from motley.core.types import Round
    from motley.server.server import Server

    start = e.net.initial()
    server = Server(e.method, e.net, start, e.data.n_clients)
    rnd = Round(1, Key.root(0), 6, 0.0)
    down, dials = server.send(rnd), server.dials(rnd)
    jobs = []
    for client, count in enumerate(steps):
        n = float(e.data.sizes[client])
        facts = FactsRow(client, 1, n, e.data.labels_of(client), 0.05, 1.5, float(count), client % 2, 1.0, 1.0)
        jobs.append(Job(client, start, facts, count, Key.root(1).fold(client), down, dials, None))
    return jobs


def gap(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> float:
    """The largest difference of payloads, relative to the largest change."""
    a, b = (torch.stack([one.payload for one in side]) for side in (ours, theirs))
    return float((a - b).abs().max() / b.abs().max())


def executor(e: Experiment, **attributes: Any) -> Batched:
    made = Batched(e.training, e.data, "cpu")
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_in_place_equals_the_functional_path_and_the_loop(method: str, optimizer: str) -> None:
    e = tiny_experiment(make_method(method), "mlp", optimizer=optimizer)
    jobs = jobs_of(e)
    in_place = executor(e, in_place=True).run(jobs)
    pure = executor(e, in_place=False).run(jobs)
    loop = Loop(e.training, e.data).run(jobs)
    assert gap(in_place, pure) < 1e-5
    assert gap(in_place, loop) < 2e-5
    for ours, theirs in zip(in_place, loop, strict=True):
        assert torch.equal(ours.trained, theirs.trained)
        assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=1e-4)


def test_jobs_keep_their_start() -> None:
    e = tiny_experiment(make_method("fedavg"), "mlp")
    jobs = jobs_of(e)
    before = jobs[0].start.clone()
    executor(e).run(jobs)
    assert torch.equal(jobs[0].start, before)


def test_clients_with_starts_of_their_own() -> None:
    e = tiny_experiment(make_method("fedprox"), "mlp")
    jobs = [job._replace(start=job.start + 0.1 * job.client) for job in jobs_of(e)]
    assert gap(executor(e).run(jobs), Loop(e.training, e.data).run(jobs)) < 2e-5


class Replayed:
    """Stands in for a captured graph: runs as often to warm up, and then calls what a graph would replay."""

    def __init__(self, function: Callable[[], None], keep: Any, restore: Callable[[], Any], pool: Any = None) -> None:
        undo = restore()
        for _ in range(3):
            function()
        undo()
        self.function = function

    def __call__(self) -> None:
        with torch.no_grad():
            self.function()


@pytest.mark.parametrize("method", METHODS)
def test_captured_path(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Captured", Replayed)
    e = tiny_experiment(make_method(method), "mlp", optimizer="sgd(momentum=0.9)")
    jobs = jobs_of(e)
    made = executor(e, cuda=True, any_width=False)
    loop = Loop(e.training, e.data).run(jobs)
    assert gap(made.run(jobs), loop) < 2e-5
    assert gap(made.run(jobs), loop) < 2e-5, "buffers are used again"


def freezing() -> Part:
    """After its first epoch a client stops training its first layer; it counts epochs, and shrinks with each."""

    def begin(c: Client, data: Data) -> Client:
        return c.note("freezing", {"epochs": torch.zeros_like(c.loss), "losses": torch.zeros_like(c.loss)})

    def epoch(c: Client) -> Client:
        first = torch.arange(len(c.trained), device=c.trained.device) == 0
        seen = c.notes["freezing"]
        noted = {"epochs": seen["epochs"] + 1, "losses": seen["losses"] + c.loss}
        return c.with_(trained=torch.where(first, 0.0, c.trained), params=0.9 * c.params).note("freezing", noted)

    def report(c: Client, data: Data) -> tuple[Client, Any]:
        return c, c.notes["freezing"]

    return Part(name="freezing", begin=begin, epoch=epoch, report=report)


@pytest.mark.parametrize("captured", [False, True])
def test_epoch_hooks(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Captured", Replayed)
    e = tiny_experiment(compose(freezing()), "mlp")
    jobs = jobs_of(e)
    ours = executor(e, cuda=captured, any_width=not captured).run(jobs)
    theirs = Loop(e.training, e.data).run(jobs)
    assert gap(ours, theirs) < 2e-5
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.trained, b.trained)
        assert float(a.extras["freezing"]["epochs"]) == float(b.extras["freezing"]["epochs"])
        assert float(a.extras["freezing"]["losses"]) == pytest.approx(float(b.extras["freezing"]["losses"]), rel=1e-4)


def test_whose_epoch_ends() -> None:
    """Of three clients with 2, 3 and 2 steps an epoch; the last one stops in its first and is in the batch still."""
    group: Any = SimpleNamespace(epoch_steps=[2, 3, 2], counts=[4, 3, 1])
    assert [Group.ended(group, s, 3) for s in range(4)] == [[], [0], [1], [0]]
    assert Group.ended(group, 2, 1) == []


def test_masked_spans_leave_frozen_layers_alone() -> None:
    e = tiny_experiment(make_method("fes"), "cnn")
    for outcome, job in zip(executor(e).run(jobs_of(e)), jobs_of(e), strict=True):
        change = e.net.layout.per_layer_sum(outcome.payload.abs())
        assert torch.equal(change > 0, outcome.trained > 0)
        assert bool(outcome.trained.all()) == (job.facts.limited == 0)


# ------------------------------------------------------------------------------------------------ tables and widths


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
    jobs = jobs_of(e)
    apart = executor(e, apart=True)
    group = apart._assemble(jobs)
    assert len(group.index) == sum(e.data.sizes[:6])
    for job, begin, n in zip(group.jobs, group.offsets.tolist(), group.samples, strict=True):
        assert group.index[begin : begin + n].tolist() == e.data.partition[job.client].tolist()
    assert group.index.data_ptr() % 16 == group.facts.client.data_ptr() % 16  # wide loads
    ours, theirs = apart.run(jobs), executor(e).run(jobs)
    assert all(torch.equal(a.payload, b.payload) for a, b in zip(ours, theirs, strict=True))


def test_phases_narrow_as_clients_finish() -> None:
    e = tiny_experiment(make_method("fedavg"), "mlp")
    made = executor(e)
    group = made._assemble(jobs_of(e))
    assert made._phases(group) == [(6, 1), (5, 2), (4, 4), (2, 7), (1, 9)]
    # Whole epochs of 7, 16, 5, 21, 10 and 13 samples in minibatches of 4, and the epoch begun.
    wanted = (4 * 7 + 4) + (16 + 12) + 2 * 5 + 16 + 8 + 4
    assert group.waste(4, made._phases(group)) == (wanted, 4 * (6 + 5 + 2 * 4 + 3 * 2 + 2 * 1))


@pytest.fixture(scope="module")
def power_law() -> tuple[Training, Any, list[Job]]:
    case = replace(case_named("fedsae_logistic"), shape=(1, 3, 3), epochs=2)
    data = make_data(case, Key.root(0))
    training = make_training(case, data, Key.root(1))
    return training, data, make_jobs(case, data, training.net.initial(), Key.root(2), 1)


@pytest.mark.parametrize("captured", [False, True])
def test_little_is_computed_in_vain_on_a_power_law(
    captured: bool, power_law: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Captured", Replayed)
    training, data, jobs = power_law
    made = Batched(training, data, "cpu")
    made.cuda, made.any_width = captured, not captured
    made.run(jobs)
    wanted = sum(
        job.steps // -(-n // 10) * n for job, n in ((job, int(job.facts.n)) for job in jobs)
    )  # two whole epochs each
    assert made.waste.wanted == wanted
    assert made.waste.computed >= wanted
    assert made.waste.share < 0.15


def test_few_traces_serve_many_widths(power_law: Any) -> None:
    training, data, jobs = power_law
    made = Batched(replace(training, optimizer=SGD(momentum=0.9)), data, "cpu")
    made.run(jobs)
    made.run(jobs[:7])
    assert len(made._traces.items) == 1


# ------------------------------------------------------------------------------------------------ memory and processes


@pytest.mark.parametrize("room", [1, 2, 5])
def test_too_many_clients_for_the_memory_are_halved(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    e = tiny_experiment(make_method("fedavg"), "mlp")
    made = executor(e)
    whole, tried = made._run_group, []

    def small(group: Any) -> list[Outcome]:
        tried.append(len(group.jobs))
        if len(group.jobs) > room:
            raise torch.OutOfMemoryError("no room")
        return whole(group)

    monkeypatch.setattr(made, "_run_group", small)
    jobs = jobs_of(e)
    assert gap(made.run(jobs), Loop(e.training, e.data).run(jobs)) < 2e-5
    assert tried[0] == 6
    assert made.widest <= max(room, 3)
    tried.clear()
    made.run(jobs)
    assert max(tried) <= room, "it remembers"


def test_one_client_that_does_not_fit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    e = tiny_experiment(make_method("fedavg"), "mlp")
    made = executor(e)

    def never(group: Any) -> list[Outcome]:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(made, "_run_group", never)
    with pytest.raises(torch.OutOfMemoryError):
        made.run(jobs_of(e))


def test_one_client_has_a_second_try_when_memory_was_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    e = tiny_experiment(make_method("fedavg"), "mlp")
    made = executor(e)
    whole, tried = made._run_group, []

    def at_first(group: Any) -> list[Outcome]:
        tried.append(len(made._traces.items))
        if len(tried) == 2:
            raise torch.OutOfMemoryError("no room")
        return whole(group)

    monkeypatch.setattr(made, "_run_group", at_first)
    (job, *_) = jobs_of(e)
    made.run([job])
    assert gap(made.run([job]), Loop(e.training, e.data).run([job])) < 2e-5
    assert tried[1] > 0
    assert tried[2] == 0, "nothing was kept"


def test_a_run_without_memory_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Run(tiny_experiment(make_method("fedavg"), "mlp"), None)

    def full(_: Any) -> list[Outcome]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 160.00 MiB. And a long text")

    monkeypatch.setattr(made.executor, "run", full)
    with pytest.raises(MemoryFullError, match=r"^The GPU's memory was full after round \d; take a smaller") as caught:
        made.go()
    assert "\n" not in str(caught.value)


def final(method: Method, **changes: Any) -> Tensor:
    return Run(tiny_experiment(method, "mlp", **changes), None).go().params


def test_workers_get_as_many_steps() -> None:
    assert deal([5, 30, 10, 15, 1], 2) == [[1, 4], [3, 2, 0]]
    assert deal([4], 3) == [[0], [], []]
    assert sorted(i for hand in deal([3, 3, 3, 3], 2) for i in hand) == [0, 1, 2, 3]


def test_worker_processes_train_their_shares() -> None:
    e = tiny_experiment(make_method("scaffold"), "mlp")
    crew = Crew(e.training, e.data, 2)
    try:
        jobs = jobs_of(e)
        ours, theirs = crew.run(jobs), Loop(e.training, e.data).run(jobs)
        assert gap(ours, theirs) < 2e-5
        assert crew.waste.wanted > 0
        kept = [job._replace(own=one.own) for job, one in zip(jobs, theirs, strict=True)]
        assert gap(crew.run(kept), Loop(e.training, e.data).run(kept)) < 2e-5
    finally:
        crew.close()


def test_a_run_is_the_same_twice() -> None:
    method = make_method("rebafl")
    assert torch.equal(final(method, executor="batched"), final(method, executor="batched"))


def test_what_is_measured_after_training_is_each_clients_own() -> None:
    """Clients with more minibatches than others train for fewer steps here, so that the two orders differ."""
    e = tiny_experiment(make_method("importance"), "mlp")
    jobs = jobs_of(e, steps=(9, 1, 7, 2, 4, 3))
    alone = [float(one.extras["importance"]) for one in Loop(e.training, e.data).run(jobs)]
    together = [float(one.extras["importance"]) for one in executor(e).run(jobs)]
    assert together == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("cuda", [False, True])
def test_minibatches_are_measured_some_at_a_time(cuda: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the mean squared gradient that `importance` has its clients report."""
    monkeypatch.setattr(module, "Captured", Replayed)
    e = tiny_experiment(make_method("radfedi"), "mlp")
    for name in ("GPU_BYTES", "CACHE_BYTES"):
        monkeypatch.setattr(module, name, 4 * 17 * e.net.size)  # so many models; a GPU takes 18 for them
    jobs = jobs_of(e)
    assert sum(-(-int(e.data.sizes[job.client]) // e.training.batch_size) for job in jobs) > 17
    found = executor(e, cuda=cuda, any_width=not cuda).run(jobs)
    for ours, theirs in zip(found, Loop(e.training, e.data).run(jobs), strict=True):
        torch.testing.assert_close(ours.extras["importance"], theirs.extras["importance"], rtol=1e-4, atol=1e-6)
