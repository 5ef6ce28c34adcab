"""The convolution kernels against torch's own convolution, pooling and activation."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from motley.nets.client_conv import ConvBlock
from tests.kernels import DEVICE, needs_kernels

pytestmark = needs_kernels

# inputs, outputs, kernel, size, padding, pool, slope
SHAPES = [
    (1, 16, 5, 12, 0, True, 0.01),
    (16, 32, 5, 10, 1, True, 0.01),
    (3, 32, 3, 9, 0, False, 0.0),
    (32, 64, 3, 7, 1, True, 0.0),
    (6, 20, 5, 8, 2, False, 1.0),
    (6, 20, 5, 9, 2, True, 1.0),
]


@pytest.mark.parametrize(("inputs", "outputs", "kernel", "size", "padding", "pool", "slope"), SHAPES)
@pytest.mark.parametrize(("biased", "planar"), [(True, False), (False, False), (True, True)])
def test_conv_block(
    inputs: int, outputs: int, kernel: int, size: int, padding: int, pool: bool, slope: float, biased: bool,
    planar: bool,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE)

    if planar and not pool and slope == 1.0:
        pytest.skip("nothing follows the convolution")
    x = drawn(3, 4, inputs, size, size)
    # One table of all parameters: clients lie apart.
    table, taps = drawn(3, outputs * (inputs * kernel**2 + 1) + 7) / kernel, outputs * inputs * kernel**2
    weight = table[:, 3 : 3 + taps].view(3, outputs, inputs, kernel, kernel)
    bias = table[:, 5 + taps : 5 + taps + outputs]

    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y: Tensor = ConvBlock.apply(x, weight, bias if biased else None, (padding, pool, slope, planar))[0]
        return torch.tanh(y).sum()

    def theirs(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = F.leaky_relu(F.conv2d(x, weight, bias if biased else None, padding=padding), slope)
        return torch.tanh(F.max_pool2d(y, 2) if pool else y).sum()

    asked = (0, 1, 2) if biased else (0, 1)
    got = vmap(grad(ours, argnums=asked))
    there = [tensor.cpu() for tensor in (x, weight, bias)]
    wanted = [grad(theirs, argnums=asked)(*(tensor[i] for tensor in there)) for i in range(3)]
    traced = make_fx(got)(x, weight, bias)
    for found in (got(x, weight, bias), traced(x, weight, bias)):
        for ours_, theirs_ in zip(found, zip(*wanted, strict=True), strict=True):
            torch.testing.assert_close(ours_.cpu(), torch.stack(theirs_), atol=1e-4, rtol=1e-4)
    values = torch.stack([theirs(*(tensor[i] for tensor in there)) for i in range(3)])
    torch.testing.assert_close(vmap(ours)(x, weight, bias).cpu(), values, atol=1e-3, rtol=1e-4)


def test_equal_pixels() -> None:
    """Among equals the first in reading order gets the gradient, as in torch."""
    x = torch.randint(0, 3, (2, 3, 1, 7, 9), generator=torch.Generator().manual_seed(0)).float().to(DEVICE)
    weight = torch.ones(2, 1, 1, 1, 1, device=DEVICE)
    got = vmap(grad(lambda x, w: (ConvBlock.apply(x, w, None, (0, True, 1.0, False))[0] ** 2).sum()))(x, weight)
    wanted = grad(lambda x: (F.max_pool2d(x, 2) ** 2).sum())(x.flatten(0, 1)).view_as(x)
    torch.testing.assert_close(got, wanted)


def test_one_client() -> None:
    x = torch.randn(2, 3, 6, 6, device=DEVICE)
    weight = torch.randn(4, 3, 3, 3, device=DEVICE, requires_grad=True)
    ConvBlock.apply(x, weight, None, (1, True, 0.0, False))[0].sum().backward()
    wanted = grad(lambda w: F.max_pool2d(F.relu(F.conv2d(x.cpu(), w, padding=1)), 2).sum())(weight.detach().cpu())
    torch.testing.assert_close(weight.grad.cpu(), wanted, atol=1e-4, rtol=1e-4)
