"""The whole training of small networks in one kernel against a plain loop."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from motley.client.optimizer import SGD
from motley.core.keys import Key
from motley.core.network import Network
from motley.data.dataset import Dataset, Scaling
from motley.data.federated import FederatedData
from motley.methods import make_method
from motley.nets import build
from motley.run.executors import batched, fused_mlp
from motley.run.executors.loop import Loop
from motley.run.experiment import Experiment, prepare
from motley.run.recipe import Recipe
from tests import tiny
from tests.kernels import DEVICE, needs_interpreter, needs_kernels
from tests.run.test_batched import Replayed, executor, gap, jobs_of

STEPS = [3, 0, 2]


def plain(
    net: Network, x: Tensor, y: Tensor, params: Tensor, start: Tensor, lr: Tensor, mu: Tensor, rows: Tensor,
    mask: Tensor | None, decay: float,
) -> Any:  # fmt: skip
    """Models and losses in double precision, one client and one step after the other."""
    models, losses = params.double(), torch.zeros(rows.shape[:2], dtype=torch.float64)
    for k, count in enumerate(STEPS):
        for s in range(count):
            model = models[k].clone().requires_grad_()
            logits = net(model, x[rows[s, k]].double()).logits
            each = F.cross_entropy(logits, y[rows[s, k]], reduction="none")
            counts = torch.ones(rows.shape[2]) if mask is None else mask[s, k]
            losses[s, k] = loss = (each * counts).sum() / counts.sum().clamp_min(1)
            (slope,) = torch.autograd.grad(loss, model)
            pull = mu[k] * (models[k] - start.double().expand_as(models)[k])
            models[k] -= lr[k] * (slope + pull + decay * models[k])
    return models, losses.detach()


def check(
    model: str, inputs: int, classes: int, batch: int, masked: bool = False, decay: float = 0.0, mu: float = 0.0,
    shared: bool = True,
) -> None:  # fmt: skip
    make = torch.Generator().manual_seed(inputs + classes + batch)
    net = build(model, (inputs,), classes, 0, Key.root(0))
    x, y = torch.randn(50, inputs, generator=make), torch.randint(classes, (50,), generator=make)
    params = net.initial() + 0.05 * torch.randn(len(STEPS), net.size, generator=make)
    start = net.initial() if shared else params + 0.1
    rows = torch.randint(50, (max(STEPS), len(STEPS), batch), generator=make)
    mask = None
    if masked:
        mask = torch.ones(rows.shape)
        mask[1, 0, batch // 2 :] = 0
        mask[1, 2] = 0
    lr, mus = torch.tensor([0.1, 0.2, 0.05]), mu * torch.tensor([1.0, 1.0, 1.0 if shared else 3.0])
    models, losses = plain(net, x, y, params, start, lr, mus, rows, mask, decay)
    training: Any = SimpleNamespace(
        optimizer=SGD(weight_decay=decay),
        net=net,
        precision="float32",
        method=SimpleNamespace(has=lambda hook: hook == "penalty" and mu > 0),
    )
    client: Any = SimpleNamespace(
        params=params.to(DEVICE),
        start=start.to(DEVICE),
        dials={"proximal": {"mu": (mus[0] if shared else mus).to(DEVICE)}},
    )
    batches = (rows.to(DEVICE), None if mask is None else mask.to(DEVICE))
    moved, found = fused_mlp.train(
        training, x.to(DEVICE), y.to(DEVICE), client, lr.to(DEVICE), torch.tensor(STEPS, device=DEVICE), batches
    )
    torch.testing.assert_close(found.cpu(), losses.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(moved.cpu(), models.float(), rtol=1e-4, atol=1e-5)
    assert torch.equal(moved[1].cpu(), params[1]), "whoever takes no step stays where it is"


@needs_kernels
@pytest.mark.parametrize(
    ("model", "inputs", "classes", "batch"),
    [
        ("mlp(hidden=[200, 200])", 784, 10, 10),
        ("mlp(hidden=[64, 64])", 54, 7, 60),
        ("mlp(hidden=[128])", 784, 10, 10),
        ("mlp(hidden=[5])", 3, 2, 1),
        ("mlp(hidden=[40, 9])", 70, 33, 17),
        ("mlp(hidden=[9, 40])", 33, 3, 16),
    ],
)
def test_it_is_the_plain_loop(model: str, inputs: int, classes: int, batch: int) -> None:
    check(model, inputs, classes, batch)


@needs_kernels
@pytest.mark.parametrize("model", ["mlp(hidden=[12])", "mlp(hidden=[12, 20])"])
def test_masks_decay_and_the_pull(model: str) -> None:
    check(model, 20, 4, 6, masked=True, decay=0.1)
    check(model, 20, 4, 6, mu=0.5)
    check(model, 20, 4, 6, masked=True, decay=0.1, mu=0.5, shared=False)


@pytest.mark.parametrize(
    ("model", "batch", "small"),
    [
        ("mlp(hidden=[200, 200])", 10, True),
        ("mlp(hidden=[200, 200])", 17, False),
        ("mlp(hidden=[64, 64])", 64, True),
        ("mlp(hidden=[300])", 10, False),
        ("mlp(hidden=[20, 20, 20])", 10, False),
        ("mlp(hidden=[])", 10, False),
        ("logistic", 10, False),
    ],
)
def test_which_networks_it_takes(model: str, batch: int, small: bool) -> None:
    assert fused_mlp.is_small(build(model, (784,), 10, 0, Key.root(0)), batch) is small


def experiment(method: str, optimizer: str = "sgd", model: str = "mlp(hidden=[12, 9])") -> Experiment:
    """Inputs are stored as bytes."""
    flat = tiny.data((11, 7, 5), n_features=6)
    d = flat.dataset
    x, test_x = ((30 * part + 120).clamp(0, 255).to(torch.uint8) for part in (d.x, d.test_x))
    dataset = Dataset("tiny", x, d.y, test_x, d.test_y, tiny.CLASSES, scaling=Scaling(1.0, 120.0, 30.0))
    data = FederatedData(dataset, flat.partition)
    recipe = Recipe(rounds=1, cohort=3, epochs=1, batch_size=4, lr=0.05, optimizer=optimizer)
    net = build(model, (6,), tiny.CLASSES, 0, Key.root(3))
    return prepare(recipe, data=data, net=net, method=make_method(method))


@needs_interpreter
@pytest.mark.parametrize("method", ["fedavg", "fedprox(mu=1.0)", "radfedi"])
def test_an_executor_takes_it(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(fused_mlp, "on_gpu", lambda x: True)
    monkeypatch.setattr(batched, "Captured", Replayed)
    e = experiment(method)
    jobs = jobs_of(e, steps=(4, 2, 3))
    made = executor(e, cuda=True, any_width=False)
    loop = Loop(e.training, e.data).run(jobs)
    compared = made.run(jobs)
    assert made._fused.works
    monkeypatch.setattr(made, "_train_captured", None)
    for found in (compared, made.run(jobs)):
        assert gap(found, loop) < 1e-4
        for ours, theirs in zip(found, loop, strict=True):
            assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=1e-4)


@pytest.mark.parametrize(
    ("e", "fits"),
    [
        (experiment("fedprox(mu=1.0)", "sgd(weight_decay=0.1)"), True),
        (experiment("fedavg", "sgd(momentum=0.5)"), False),
        (experiment("fedavg", "adam"), False),
        (experiment("feddyn"), False),
        (experiment("scaffold"), False),
        (experiment("fedavg", model="logistic"), False),
    ],
)
def test_which_runs_it_takes(monkeypatch: pytest.MonkeyPatch, e: Experiment, fits: bool) -> None:
    assert not fused_mlp.fits(e.training, e.data)
    monkeypatch.setattr(fused_mlp, "on_gpu", lambda x: True)
    assert fused_mlp.fits(e.training, e.data) is fits
