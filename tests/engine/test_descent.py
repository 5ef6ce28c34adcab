"""The whole training of linear models in one kernel against a plain loop."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from motley.client.optimizer import SGD
from motley.engine.kernels import descent_op
from tests.kernels import DEVICE, needs_kernels

STEPS = [3, 0, 2]


def plain(x: Tensor, y: Tensor, start: Tensor, lr: Tensor, rows: Tensor, mask: Tensor | None, decay: float) -> Any:
    """Models and losses in double precision, one client and one step after the other."""
    classes = start.shape[1] // (x.shape[1] + 1)
    models, losses = start.double(), torch.zeros(rows.shape[:2], dtype=torch.float64)
    for k, count in enumerate(STEPS):
        for s in range(count):
            model = models[k].clone().requires_grad_()
            weight, bias = model[:-classes].view(classes, -1), model[-classes:]
            each = F.cross_entropy(x[rows[s, k]].double() @ weight.T + bias, y[rows[s, k]], reduction="none")
            counts = torch.ones(rows.shape[2]) if mask is None else mask[s, k]
            losses[s, k] = loss = (each * counts).sum() / counts.sum().clamp_min(1)
            (slope,) = torch.autograd.grad(loss, model)
            models[k] -= lr[k] * (slope + decay * models[k])
    return models, losses.detach()


def check(
    inputs: int, classes: int, batch: int, masked: bool = False, decay: float = 0.0, groups: int | None = None
) -> None:
    make = torch.Generator().manual_seed(inputs + classes + batch)
    x, y = torch.randn(50, inputs, generator=make), torch.randint(classes, (50,), generator=make)
    start = 0.1 * torch.randn(len(STEPS), classes * (inputs + 1), generator=make)
    rows = torch.randint(50, (max(STEPS), len(STEPS), batch), generator=make)
    mask = None
    if masked:
        mask = torch.ones(rows.shape)
        mask[1, 0, batch // 2 :] = 0
        mask[1, 2] = 0
    lr = torch.tensor([0.1, 0.2, 0.05])
    models, losses = plain(x, y, start, lr, rows, mask, decay)
    training: Any = SimpleNamespace(
        optimizer=SGD(weight_decay=decay),
        net=SimpleNamespace(n_features=inputs, n_classes=classes),
        precision="float32",
    )
    data: Any = SimpleNamespace(dataset=SimpleNamespace(x=x.to(DEVICE), y=y.to(DEVICE)))
    moved = start.to(DEVICE)
    batches = (rows.to(DEVICE), None if mask is None else mask.to(DEVICE))
    steps = torch.tensor(STEPS, device=DEVICE)
    found = descent_op.train(training, data, moved, lr.to(DEVICE), steps, batches, groups=groups)
    torch.testing.assert_close(found.cpu(), losses.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(moved.cpu(), models.float(), rtol=1e-4, atol=1e-5)
    assert torch.equal(moved[1].cpu(), start[1]), "whoever takes no step stays where it is"


@needs_kernels
@pytest.mark.parametrize("batch", [10, 16, 33])
@pytest.mark.parametrize("classes", [2, 10, 32])
@pytest.mark.parametrize("inputs", [60, 784, 1024])
def test_it_is_the_plain_loop(inputs: int, classes: int, batch: int) -> None:
    if DEVICE == "cuda" and inputs * batch > 1024 * 16:
        pytest.skip("more than shared memory holds: such runs take the general path")
    check(inputs, classes, batch)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("inputs", [16, 32, 64, 128, 512, 1024])
def test_groups_are_wide_enough_for_products(inputs: int, exact: bool) -> None:
    groups, warps = descent_op.plan(inputs, exact)
    assert inputs // groups >= 16
    assert warps <= groups


@needs_kernels
@pytest.mark.parametrize("groups", [1, 2, 4, 8])
@pytest.mark.parametrize("inputs", [100, 128])
def test_the_inputs_in_groups(inputs: int, groups: int) -> None:
    check(inputs, 10, 10, groups=groups)


@needs_kernels
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("masked", [True, False])
def test_masks_and_weight_decay(masked: bool, decay: float) -> None:
    check(60, 10, 10, masked=masked, decay=decay)
