"""The Triton kernels against torch, where there is a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from motley.nets.client_conv import ClientConv, Pool, available

pytestmark = pytest.mark.skipif(not available(), reason="needs a GPU and Triton")


@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "size", "padding"), [(1, 16, 5, 28, 0), (16, 32, 5, 12, 1), (3, 20, 3, 9, 1)]
)
def test_client_conv(inputs: int, outputs: int, kernel: int, size: int, padding: int) -> None:
    x = torch.randn(4, 6, inputs, size, size, device="cuda", dtype=torch.float32)
    weight = torch.randn(4, outputs, inputs, kernel, kernel, device="cuda")

    def ours(x: Tensor, w: Tensor) -> Tensor:
        y: Tensor = ClientConv.apply(x, w, padding)
        return y.tanh().sum()

    def theirs(x: Tensor, w: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(x, w, padding=padding).tanh().sum()

    got = vmap(grad(ours, argnums=(0, 1)))(x, weight)
    want = vmap(grad(theirs, argnums=(0, 1)))(x.double(), weight.double())
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-3)


def test_pool() -> None:
    x = torch.randint(0, 3, (4, 2, 3, 7, 9), device="cuda").float()
    weight = torch.randn(4, 2, 3, 3, 4, device="cuda")
    got = vmap(grad(lambda x, w: (Pool.apply(x)[0] * w).sum()))(x, weight)
    inputs = x.flatten(0, 1).requires_grad_()
    (want,) = torch.autograd.grad((torch.nn.functional.max_pool2d(inputs, 2) * weight.flatten(0, 1)).sum(), inputs)
    assert torch.equal(got.flatten(0, 1), want)
