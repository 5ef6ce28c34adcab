"""Steps as a GPU takes them, all kernels included, against the loop executor."""

from __future__ import annotations

import operator
from dataclasses import replace

import pytest
import torch

from motley.bench.cases import CASES as CASES_OF_BENCH
from motley.bench.cases import make_data, make_jobs, make_training
from motley.client.augment import Augment, Change, Crop, Mirror, make_augment
from motley.core import kernels
from motley.core.keys import Key
from motley.core.part import Method
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData
from motley.methods import make_method
from motley.nets import client_linear
from motley.nets.zoo import build
from motley.run.executors import batched, fetch
from motley.run.executors.graphs import is_view
from motley.run.executors.loop import Loop
from motley.run.experiment import Experiment, prepare
from motley.run.recipe import Recipe
from tests import tiny
from tests.kernels import DEVICE, needs_kernels
from tests.run.test_batched import Replayed, executor, gap, jobs_of

pytestmark = needs_kernels


def experiment(method: Method, model: str, channels: int, sizes: tuple[int, ...] = tiny.SIZES) -> Experiment:
    flat = tiny.data(sizes, n_features=channels * 64)
    d, shape = flat.dataset, (channels, 8, 8)
    x, test_x = d.x.view(-1, *shape), d.test_x.view(-1, *shape)
    data = FederatedData(Dataset("tiny", x, d.y, test_x, d.test_y, tiny.CLASSES, kind="image"), flat.partition)
    net = build(model, shape, tiny.CLASSES, 0, Key.root(3))
    recipe = Recipe(
        rounds=1, cohort=2, epochs=1, batch_size=4, lr=0.05, optimizer="sgd(momentum=0.5, weight_decay=0.01)"
    )
    return prepare(recipe, data=data, net=net, method=method)


CASES = [
    ("fedavg", "cnn_pfl", 3, (8, 4)),
    ("fedavg", "cnn_rebafl(channels=[4, 6], padding=2)", 1, (7, 5)),
    ("rebafl", "cnn_rebafl(channels=[4, 6], padding=2)", 3, (7, 5)),
    ("fedprox(mu=1.0)", "cnn_rebafl(channels=[4, 6], padding=2)", 1, (8, 4)),
    ("scaffold", "cnn_rebafl(channels=[4, 6], padding=2)", 1, (7, 5)),
    ("fes", "cnn_rebafl(channels=[4, 6], padding=2)", 1, (7, 5)),
    ("fedavg", "mlp(hidden=[8])", 3, (7, 5)),
]


LAUNCHES = [(*CASES[0], 19), (*CASES[1], 21)]


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels wherever a GPU would run them, on tensors of the CPU, and no graphs."""
    if kernels.available():
        pytest.skip("only Triton's interpreter takes tensors of the CPU")
    monkeypatch.setattr(kernels, "can_take", lambda tensor: tensor.dtype == torch.float32)
    monkeypatch.setattr(client_linear, "LEAST_WEIGHTS", 1 << 14)
    monkeypatch.setattr(batched, "Captured", Replayed)


@pytest.mark.usefixtures("by_kernels")
@pytest.mark.parametrize(("method", "model", "channels", "sizes"), CASES)
def test_steps(method: str, model: str, channels: int, sizes: tuple[int, ...]) -> None:
    e = experiment(make_method(method), model, channels, sizes)
    jobs = jobs_of(e, steps=(2, 2))
    made = executor(e, cuda=True, any_width=False)
    loop = Loop(e.training, e.data).run(jobs)
    for ours, theirs in zip(found := made.run(jobs), loop, strict=True):
        assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=1e-4)
    assert gap(found, loop) < 1e-4
    names = {str(node.target) for traced in made._traces.items.values() for node in traced._graph.graph.nodes}
    assert any("motley.fetch" in name for name in names)
    assert any("motley.cross_entropy" in name for name in names)


VIEWS = {"view", "permute", "expand", "unsqueeze", "transpose", "narrow"}


@pytest.mark.usefixtures("by_kernels")
@pytest.mark.parametrize("augment", ["", "crop(padding=2)+mirror"])
@pytest.mark.parametrize(("method", "model", "channels", "sizes", "launches"), LAUNCHES)
def test_a_step_launches_few_kernels(
    method: str, model: str, channels: int, sizes: tuple[int, ...], launches: int, augment: str
) -> None:
    """Operations that are not views; the choice of rows and the record of losses come on top."""
    e = experiment(make_method(method), model, channels, sizes)
    training = replace(e.training, augment=make_augment(augment, e.data.dataset))
    made = executor(replace(e, training=training), cuda=True, any_width=False)
    made.run(jobs_of(e, steps=(2, 2)))
    (step,) = (traced for (what, *_), traced in made._traces.items.items() if what == "rows")
    nodes = [node for node in step._graph.graph.nodes if node.op in ("call_function", "call_method")]
    working = [
        node
        for node in nodes
        if node.target not in (operator.getitem, torch.split_with_sizes, *VIEWS) and not is_view(node)
    ]
    assert len(working) <= launches


class Dimmed:
    """A change that no kernel knows."""

    def __call__(self, x: torch.Tensor, key: torch.Tensor, fill: torch.Tensor) -> torch.Tensor:
        return 0.5 * x


CONVOLUTIONAL = "cnn_rebafl(channels=[4, 6], padding=2)"


@pytest.mark.usefixtures("by_kernels")
@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (CONVOLUTIONAL, (Crop(2), Mirror())),
        ("mlp(hidden=[8])", (Mirror(), Crop(2))),
        (CONVOLUTIONAL, (Mirror(), Dimmed())),
    ],
)
def test_images_are_augmented_within_the_step(model: str, changes: tuple[Change, ...]) -> None:
    e = experiment(make_method("fedavg"), model, 3, (7, 5))
    training = replace(e.training, augment=Augment(changes, (-1.0, 0.0, 1.0)))
    jobs = jobs_of(e, steps=(3, 2))
    found = executor(replace(e, training=training), cuda=True, any_width=False).run(jobs)
    assert gap(found, Loop(training, e.data).run(jobs)) < 1e-4
    assert gap(found, Loop(e.training, e.data).run(jobs)) > 1e-2


@pytest.mark.usefixtures("by_kernels")
def test_kernels_that_are_not_trusted_do_not_run() -> None:
    e = experiment(make_method("fedavg"), "cnn_rebafl(channels=[4, 6], padding=2)", 1, (7, 5))
    jobs = jobs_of(e, steps=(2, 2))
    made = executor(e, cuda=True, any_width=False, kernels=False)
    assert gap(made.run(jobs), Loop(e.training, e.data).run(jobs)) < 1e-5
    names = {str(node.target) for traced in made._traces.items.values() for node in traced._graph.graph.nodes}
    assert not any("motley." in name for name in names)


@pytest.mark.usefixtures("by_kernels")
def test_steps_of_recurrent_networks() -> None:
    small = {"population": 3, "cohort": 3, "samples": 8, "batch_size": 4, "classes": 9}
    case = replace(CASES_OF_BENCH["lstm"], shape=(6,), model="char_lstm(embedding=3, hidden=20)", **small)
    key = Key.root(0)
    data = make_data(case, key.fold("data"))
    training = make_training(case, data, key.fold("init"))
    jobs = make_jobs(case, data, training.net.initial(), key, 1)
    made = batched.Batched(training, data, "cpu")
    made.cuda, made.any_width = True, False
    assert gap(made.run(jobs), Loop(training, data).run(jobs)) < 1e-5
    names = {str(node.target) for traced in made._traces.items.values() for node in traced._graph.graph.nodes}
    assert {"motley.lstm_forward.default", "motley.lstm_backward.default"} <= names


@pytest.mark.usefixtures("by_kernels")
def test_bfloat16_takes_no_kernel_for_float32() -> None:
    e = experiment(make_method("fedavg"), "cnn_rebafl(channels=[4, 6], padding=2)", 1, (7, 5))
    training = replace(e.training, precision="bf16")
    jobs = jobs_of(e, steps=(2, 2))
    found = executor(replace(e, training=training), cuda=True, any_width=False).run(jobs)
    assert gap(found, Loop(training, e.data).run(jobs)) < 0.1


@pytest.mark.parametrize(("channels", "masked"), [(3, True), (1, False)])
def test_fetch(channels: int, masked: bool) -> None:
    keys = torch.tensor([1, 2], device=DEVICE)
    x, y = torch.randn(9, channels, 5, 7), torch.arange(9) % 4
    rows = torch.tensor([[0, 8, 3], [2, 2, 7]])
    mask = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]) if masked else None
    number, lr, counts = torch.tensor([5]), torch.tensor([0.1, 0.2]), (torch.tensor([5, 6]), torch.tensor([2, 6]))
    given = [None if one is None else one.to(DEVICE) for one in (x, y, rows, mask, number, lr, *counts)]
    samples, labels, share, rate, epoch = fetch.fetch(*given, keys, None, channels, [])
    wanted = x[rows].permute(0, 1, 3, 4, 2).flatten(2)
    assert torch.equal(samples.cpu(), wanted)
    assert torch.equal(labels.cpu(), y[rows])
    assert torch.equal(rate.cpu(), torch.tensor([0.0, 0.2]))
    assert torch.equal(epoch.cpu(), torch.tensor([2.0, 0.0]))
    if mask is not None:
        torch.testing.assert_close(share.cpu(), mask / mask.sum(-1, keepdim=True).clamp_min(1.0))


WAYS = [(Crop(2),), (Mirror(),), (Crop(2), Mirror()), (Mirror(), Crop(2)), (Crop(1), Mirror(), Crop(4), Mirror())]


@pytest.mark.parametrize("changes", WAYS, ids=str)
@pytest.mark.parametrize(("channels", "last"), [(1, True), (3, True), (3, False)])
@pytest.mark.parametrize("step", [0, 1, 1 << 40])
def test_fetch_changes_images_as_the_plain_way_does(
    changes: tuple[Change, ...], channels: int, last: bool, step: int
) -> None:
    x, rows = torch.randn(9, channels, 5, 7), torch.tensor([[0, 8, 3, 1], [2, 2, 7, 2], [0, 8, 3, 1]])
    augment = Augment(changes, (0.1, -2.0, 3.0)[:channels])
    keys = torch.tensor([Key.root(3).fold(client).signed for client in range(3)])
    wanted = torch.stack([augment(x[some], key, step) for some, key in zip(rows, keys, strict=True)])
    ones, black = torch.ones(3, dtype=torch.int64), torch.tensor(augment.black)
    given = (x, torch.zeros(9), rows, None, torch.tensor([step]), torch.ones(3), ones, ones, keys, black)
    placed = [None if one is None else one.to(DEVICE) for one in given]
    found = fetch.fetch(*placed, channels if last else 1, augment.moves)[0].cpu()
    assert torch.equal(found, (wanted.permute(0, 1, 3, 4, 2) if last else wanted).flatten(2))


def test_a_kernel_changes_images_only_in_ways_it_knows() -> None:
    class Askew(Mirror):
        pass

    assert Augment((Crop(4), Mirror()), (0.0,)).moves == [4, 0]
    assert Augment((Crop(4), Dimmed()), (0.0,)).moves is None
    assert Augment((Askew(),), (0.0,)).moves is None


def test_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "can_take", lambda _: True)
    losses, number = torch.zeros(4, 7, device=DEVICE), torch.tensor([1], device=DEVICE)
    wanted = torch.zeros(4, 7)
    for step in (1, 2):
        fetch.record_(losses, number, torch.arange(5.0, device=DEVICE) + step)
        wanted[step, :5] = torch.arange(5.0) + step
    assert torch.equal(losses.cpu(), wanted)
    assert number.tolist() == [3]
