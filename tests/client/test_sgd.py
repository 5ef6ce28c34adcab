"""Steps of SGD that are joined into one, against the same steps one by one."""

import pytest
import torch
from torch import Tensor

from motley.client.optimizer import SGD
from motley.engine.batched.trace import Traced
from motley.engine.kernels.sgd_op import sgd_, sgd_pieces_
from tests.kernels import DEVICE, needs_kernels

pytestmark = needs_kernels


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + seed)).to(DEVICE)


@pytest.mark.parametrize("optimizer", [SGD(), SGD(0.9, 0.01)])
def test_pieces(optimizer: SGD) -> None:
    """Gradients in several parts, strided ones, and columns that stay as they are."""
    table, rate = drawn(3, 3000)[:, :2990], torch.tensor([[0.1], [0.0], [0.3]], device=DEVICE)
    velocity = drawn(3, 2990, seed=1) if optimizer.momentum else None
    grads = [drawn(1, 3, 1100), drawn(5, 3, 40)[:, :, 3:30], drawn(3, 7, 9).permute(1, 0, 2), drawn(33, 3, 70)]
    starts = [0, 1200, 1300, 2920]
    summed = torch.zeros(3, 2990, device=DEVICE)
    touched = torch.zeros(2990, dtype=torch.bool, device=DEVICE)
    for start, grad in zip(starts, grads, strict=True):
        summed[:, start : start + grad.shape[2]] = grad.sum(0)
        touched[start : start + grad.shape[2]] = True
    state = {} if velocity is None else {"velocity": velocity}
    wanted, moved = optimizer.step(state, table, summed, rate)
    wanted = torch.where(touched, wanted, table)
    kept = None if velocity is None else torch.where(touched, moved["velocity"], velocity)
    sgd_pieces_(table, velocity, grads, starts, rate, optimizer.momentum, optimizer.weight_decay)
    torch.testing.assert_close(table, wanted)
    if velocity is not None:
        torch.testing.assert_close(velocity, kept)


def one_by_one(params: Tensor, velocity: Tensor, parts: Tensor, slope: Tensor, rate: Tensor) -> Tensor:
    pieces = torch.split(params, [40, 10, 6], dim=1)
    weight, bias = parts.sum(0).split([40, 10], 1)
    gradients = (weight, bias, slope.sum(1))
    for i, (piece, gradient) in enumerate(zip(pieces, gradients, strict=True)):
        begin = (0, 40, 50)[i]
        sgd_(piece, velocity[:, begin : begin + piece.shape[1]], gradient, rate, 0.9, 0.01)
    return rate * 1.5


def by_one_table(params: Tensor, velocity: Tensor, parts: Tensor, slope: Tensor, rate: Tensor) -> Tensor:
    gradient = torch.cat([parts.sum(0), slope.sum(1)], 1)
    sgd_(params, velocity, gradient, rate, 0.9, 0.01)
    return rate * 1.5


def with_slices(params: Tensor, velocity: Tensor, parts: Tensor, slope: Tensor, rate: Tensor) -> Tensor:
    """Some parameters are used twice: in the model, and as a slice of the whole by what a part adds to the loss."""
    more = torch.ops.aten.slice_backward(slope.sum(1) ** 2, [2, 56], 1, 50, 56, 1)
    gradient = more + torch.cat([parts.sum(0), slope.sum(1)], 1)
    sgd_(params, velocity, gradient, rate, 0.9, 0.01)
    return rate * 1.5


def with_other_slices(params: Tensor, velocity: Tensor, parts: Tensor, slope: Tensor, rate: Tensor) -> Tensor:
    """A slice that lies across two of the model's tensors: the gradient stays one table."""
    more = torch.ops.aten.slice_backward(slope.sum(1) ** 2, [2, 56], 1, 47, 53, 1)
    gradient = more + torch.cat([parts.sum(0), slope.sum(1)], 1)
    sgd_(params, velocity, gradient, rate, 0.9, 0.01)
    return rate * 1.5


def read_in_between(params: Tensor, velocity: Tensor, parts: Tensor, slope: Tensor, rate: Tensor) -> Tensor:
    sgd_(params[:, :50], velocity[:, :50], parts.sum(0), rate, 0.9, 0.01)
    seen = params.sum(1, keepdim=True)
    sgd_(params[:, 50:], velocity[:, 50:], slope.sum(1) * seen, rate, 0.9, 0.01)
    return seen


@pytest.mark.parametrize(
    ("step", "updates", "tables"),
    [
        (one_by_one, 1, False),
        (by_one_table, 1, False),
        (with_slices, 1, False),
        (with_other_slices, 1, True),
        (read_in_between, 2, False),
    ],
)
def test_joined(step: object, updates: int, tables: bool) -> None:
    def fresh() -> tuple[Tensor, ...]:
        parts, slope = drawn(4, 2, 50), drawn(2, 5, 6)
        return drawn(2, 56), drawn(2, 56, seed=1), parts, slope, torch.tensor([[0.1], [0.2]], device=DEVICE)

    assert callable(step)
    traced = Traced(step, *fresh())
    names = [str(node.target) for node in traced.operations]
    assert sum("sgd_" in name for name in names) == updates
    assert any("cat" in name for name in names) == tables
    found, wanted = fresh(), fresh()
    torch.testing.assert_close(traced(*found), step(*wanted))
    torch.testing.assert_close(found, wanted)
