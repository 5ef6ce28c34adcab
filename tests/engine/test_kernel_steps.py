"""Steps as a GPU takes them, all kernels included, against the loop executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from motley.bench.cases import CASES as CASES_OF_BENCH
from motley.bench.cases import make_data, make_site, make_tasks
from motley.client.augment import Augment, Change, Crop, Mirror, make_augment
from motley.client.site import Site
from motley.core import acceleration
from motley.core.keys import Key
from motley.core.part import Method
from motley.core.tasks import Weights
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData
from motley.engine.batched.together import Batched
from motley.engine.kernels import fetch_op, linear_op
from motley.engine.loop import Loop
from motley.methods import make_method
from motley.nets.zoo import build
from motley.runtime.experiment import Experiment, Given, prepare
from motley.runtime.recipe import Recipe
from tests import tiny
from tests.engine.work import AsOnGpu, Replayed, gap, reports, tasks_of
from tests.kernels import DEVICE, Launched, needs_kernels

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
    return prepare(recipe, Given(data, net, method))


def changed(e: Experiment, **training: Any) -> Experiment:
    return replace(e, training=replace(e.training, **training))


class Gpu:
    """The batched executor as on a GPU, which notes what every step that is replayed launches."""

    def __init__(self, site: Site, trusted: bool = True) -> None:
        self.steps: list[list[str]] = []
        self.executor = Batched(site, "cpu", AsOnGpu(site, self._capture, lambda: trusted))

    def _capture(self, *given: Any) -> Callable[[], None]:
        step = Replayed(*given)

        def replay() -> None:
            with Launched() as seen:
                step()
            self.steps.append(seen.names)

        return replay

    @property
    def launched(self) -> set[str]:
        """What any step has launched."""
        return {name for names in self.steps for name in names}


CASES = [
    ("fedavg", "cnn_pfl", 3, (8, 4)),
    ("fedavg", "cnn_rebafl(channels=[4, 6], padding=2)", 1, (7, 5)),
    ("rebafl", "cnn_rebafl(channels=[4, 6], padding=2)", 3, (7, 5)),
    ("fedprox(mu=1.0)", "cnn_rebafl(channels=[4, 6], padding=2)", 1, (8, 4)),
    ("scaffold", "cnn_rebafl(channels=[4, 6], padding=2)", 1, (7, 5)),
    ("moon(projection=true)", "cnn_rebafl(channels=[4, 6], padding=2, projection=[8, 4])", 3, (7, 5)),
    ("fes", "cnn_rebafl(channels=[4, 6], padding=2)", 1, (7, 5)),
    ("fedavg", "mlp(hidden=[8])", 3, (7, 5)),
]


LAUNCHES = [(*CASES[0], 19), (*CASES[1], 21)]


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels wherever a GPU would run them, on tensors of the CPU."""
    if acceleration.available():
        pytest.skip("only Triton's interpreter takes tensors of the CPU")
    monkeypatch.setattr(acceleration, "can_take", lambda tensor: tensor.dtype == torch.float32)
    monkeypatch.setattr(linear_op, "LEAST_WEIGHTS", 1 << 14)


@pytest.mark.usefixtures("by_kernels")
@pytest.mark.parametrize(("method", "model", "channels", "sizes"), CASES)
def test_steps(method: str, model: str, channels: int, sizes: tuple[int, ...]) -> None:
    e = experiment(make_method(method), model, channels, sizes)
    tasks = tasks_of(e, steps=(2, 2))
    gpu = Gpu(e.site)
    found, loop = reports(gpu.executor, tasks), reports(Loop(e.site), tasks)
    for ours, theirs in zip(found, loop, strict=True):
        assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=1e-4)
    assert gap(found, loop) < 1e-4
    assert {"motley::fetch", "motley::cross_entropy"} <= gpu.launched


@pytest.mark.usefixtures("by_kernels")
@pytest.mark.parametrize("augment", ["", "crop(padding=2)+mirror"])
@pytest.mark.parametrize(("method", "model", "channels", "sizes", "launches"), LAUNCHES)
def test_a_step_launches_few_kernels(
    method: str, model: str, channels: int, sizes: tuple[int, ...], launches: int, augment: str
) -> None:
    """From the fetching of samples to the update; the choice of rows and the record of losses come on top."""
    e = experiment(make_method(method), model, channels, sizes)
    gpu = Gpu(changed(e, augment=make_augment(augment, e.data.dataset)).site)
    reports(gpu.executor, tasks_of(e, steps=(2, 2)))
    for names in gpu.steps:
        begin, end = names.index("motley::fetch"), names.index("motley::sgd_pieces_")
        assert names[:begin] == ["aten::index_select"] * begin
        assert end + 1 - begin <= launches
    assert len(gpu.steps) == 2


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
    augmenting = changed(e, augment=Augment(changes, (-1.0, 0.0, 1.0)))
    tasks = tasks_of(e, steps=(3, 2))
    found = reports(Gpu(augmenting.site).executor, tasks)
    assert gap(found, reports(Loop(augmenting.site), tasks)) < 1e-4
    assert gap(found, reports(Loop(e.site), tasks)) > 1e-2


@pytest.mark.usefixtures("by_kernels")
def test_kernels_that_are_not_trusted_do_not_run() -> None:
    e = experiment(make_method("fedavg"), CONVOLUTIONAL, 1, (7, 5))
    tasks = tasks_of(e, steps=(2, 2))
    gpu = Gpu(e.site, trusted=False)
    assert gap(reports(gpu.executor, tasks), reports(Loop(e.site), tasks)) < 1e-5
    assert gpu.launched
    assert not any(name.startswith("motley::") for name in gpu.launched)


@pytest.mark.usefixtures("by_kernels")
def test_steps_of_recurrent_networks() -> None:
    small = {"population": 3, "cohort": 3, "samples": 8, "batch_size": 4, "classes": 9}
    case = replace(CASES_OF_BENCH["lstm"], shape=(6,), model="char_lstm(embedding=3, hidden=20)", **small)
    key = Key.root(0)
    site = make_site(case, make_data(case, key.fold("data")), key.fold("init"))
    tasks = make_tasks(case, Weights(site.training.net.initial()), key, 1)
    gpu = Gpu(site)
    assert gap(reports(gpu.executor, tasks), reports(Loop(site), tasks)) < 1e-5
    assert {"motley::lstm_forward", "motley::lstm_backward"} <= gpu.launched


@pytest.mark.usefixtures("by_kernels")
def test_bfloat16_takes_no_kernel_for_float32() -> None:
    e = changed(experiment(make_method("fedavg"), CONVOLUTIONAL, 1, (7, 5)), precision="bf16")
    tasks = tasks_of(e, steps=(2, 2))
    assert gap(reports(Gpu(e.site).executor, tasks), reports(Loop(e.site), tasks)) < 0.1


@pytest.mark.parametrize(("channels", "masked"), [(3, True), (1, False)])
def test_fetch(channels: int, masked: bool) -> None:
    keys = torch.tensor([1, 2], device=DEVICE)
    x, y = torch.randn(9, channels, 5, 7), torch.arange(9) % 4
    rows = torch.tensor([[0, 8, 3], [2, 2, 7]])
    mask = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]) if masked else None
    number, lr, counts = torch.tensor([5]), torch.tensor([0.1, 0.2]), (torch.tensor([5, 6]), torch.tensor([2, 6]))
    given = [None if one is None else one.to(DEVICE) for one in (x, y, rows, mask, number, lr, *counts)]
    samples, labels, share, rate, epoch = fetch_op.fetch(*given, keys, None, channels, [])
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
    found = fetch_op.fetch(*placed, channels if last else 1, augment.moves)[0].cpu()
    assert torch.equal(found, (wanted.permute(0, 1, 3, 4, 2) if last else wanted).flatten(2))


def test_a_kernel_changes_images_only_in_ways_it_knows() -> None:
    class Askew(Mirror):
        pass

    assert Augment((Crop(4), Mirror()), (0.0,)).moves == [4, 0]
    assert Augment((Crop(4), Dimmed()), (0.0,)).moves is None
    assert Augment((Askew(),), (0.0,)).moves is None


def test_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "can_take", lambda _: True)
    losses, number = torch.zeros(4, 7, device=DEVICE), torch.tensor([1], device=DEVICE)
    wanted = torch.zeros(4, 7)
    for step in (1, 2):
        fetch_op.record_(losses, number, torch.arange(5.0, device=DEVICE) + step)
        wanted[step, :5] = torch.arange(5.0) + step
    assert torch.equal(losses.cpu(), wanted)
    assert number.tolist() == [3]
