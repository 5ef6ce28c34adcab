"""The kernels of large linear layers and of SGD against torch, and the graph that joins the two."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from motley.client.optimizer import SGD
from motley.engine.batched.trace import Traced
from motley.engine.kernels.linear_op import ClientLinear
from motley.engine.kernels.sgd_op import sgd_
from tests.kernels import DEVICE, Launched, needs_kernels

pytestmark = needs_kernels


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


@pytest.mark.parametrize(("batch", "inputs", "outputs"), [(10, 200, 130), (3, 64, 20), (33, 300, 16)])
def test_linear(batch: int, inputs: int, outputs: int) -> None:
    x, weight, bias = drawn(3, batch, inputs), drawn(3, outputs, inputs) / 10, drawn(3, outputs)

    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y: Tensor = ClientLinear.apply(x, weight, bias)
        return y.tanh().sum()

    def theirs(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, weight, bias).tanh().sum()

    got = vmap(grad(ours, argnums=(0, 1, 2)))(x, weight, bias)
    wanted = vmap(grad(theirs, argnums=(0, 1, 2)))(x, weight, bias)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.5), SGD(0.9, 0.01), SGD(0.0, 0.01)])
def test_sgd(optimizer: SGD) -> None:
    whole, slope, rate = drawn(3, 50), drawn(3, 20), torch.tensor([[0.1], [0.0], [0.3]], device=DEVICE)
    state = {"velocity": drawn(3, 21)[:, :20].contiguous()} if optimizer.momentum else {}
    wanted, moved = vmap(optimizer.step)(state, whole[:, 5:25], slope, rate)
    kept = whole.clone()
    sgd_(whole[:, 5:25], state.get("velocity"), slope, rate, optimizer.momentum, optimizer.weight_decay)
    torch.testing.assert_close(whole[:, 5:25], wanted)
    torch.testing.assert_close(whole[:, :5], kept[:, :5], rtol=0, atol=0)
    torch.testing.assert_close(whole[:, 25:], kept[:, 25:], rtol=0, atol=0)
    if optimizer.momentum:
        torch.testing.assert_close(state["velocity"], moved["velocity"])


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.5, 0.01)])
def test_fused_update(momentum: float, decay: float) -> None:
    """A traced step takes the gradient of a large layer within the update, to the same result."""
    x, rate = drawn(2, 5, 40), torch.full((2, 1), 0.1, device=DEVICE)

    def fresh() -> tuple[Tensor, Tensor]:
        return drawn(2, 24 * 40), drawn(2, 24 * 40 + 1)[:, 1:].contiguous()

    def step(params: Tensor, velocity: Tensor, x: Tensor, rate: Tensor) -> Tensor:
        def loss(weight: Tensor, x: Tensor) -> Tensor:
            y: Tensor = ClientLinear.apply(x, weight, None)
            return y.tanh().sum()

        slopes = vmap(grad(loss))(params.view(2, 24, 40), x)
        sgd_(params, velocity if momentum else None, slopes.flatten(1), rate, momentum, decay)
        return rate * 1.5

    traced = Traced(step, *fresh(), x, rate)  # tracing runs the step as well
    found, wanted = (fresh(), fresh())
    with Launched() as launched:
        traced(*found, x, rate)
    assert "motley::sgd_product_" in launched.names
    assert "motley::linear_weight" not in launched.names
    step(*wanted, x, rate)
    torch.testing.assert_close(found, wanted)


def two_layers(params: Tensor, velocity: Tensor | None, x: Tensor, rate: Tensor, later: bool) -> Tensor:
    """A step of a large layer after a small one; later: something reads the large one's weights after the gradients."""
    k, n = len(params), 24 * 40
    scale, weight = params[:, :40], params[:, 40 : 40 + n]

    def loss(scale: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        y: Tensor = ClientLinear.apply((x * scale).tanh(), weight, None)
        return y.tanh().sum()

    slopes = vmap(grad(loss, argnums=(0, 1)))(scale, weight.view(k, 24, 40), x)
    seen = (weight[:, 7:9] ** 2).sum(1, keepdim=True) if later else rate
    for start, slope in zip((0, 40), slopes, strict=True):
        some = slice(start, start + slope[0].numel())
        sgd_(params[:, some], None if velocity is None else velocity[:, some], slope.flatten(1), rate, 0.5, 0.01)
    return seen * 1.5


@pytest.mark.parametrize("momentum", [True, False])
@pytest.mark.parametrize("later", [False, True])
def test_input_gradient_within_the_update(momentum: bool, later: bool) -> None:
    """Weights are read once for both, unless something reads them in between."""
    x, rate = drawn(2, 5, 40), torch.full((2, 1), 0.1, device=DEVICE)

    def fresh() -> tuple[Tensor, Tensor | None]:
        return drawn(2, 25 * 40), drawn(2, 25 * 40 + 1)[:, 1:].contiguous() if momentum else None

    def step(params: Tensor, velocity: Tensor | None, x: Tensor, rate: Tensor) -> Tensor:
        return two_layers(params, velocity, x, rate, later)

    traced = Traced(step, *fresh(), x, rate)
    found, wanted = (fresh(), fresh())
    with Launched() as launched:
        seen = traced(*found, x, rate)
    assert ("motley::sgd_product_input_" in launched.names) is not later
    assert ("motley::linear_input" in launched.names) is later
    torch.testing.assert_close(seen, step(*wanted, x, rate))
    torch.testing.assert_close(found, wanted)
