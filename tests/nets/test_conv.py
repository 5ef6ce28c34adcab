"""The formulations of convolution and pooling agree with torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from motley.core.errors import InputError
from motley.core.vmapped import is_vmapped
from motley.nets.conv import Conv2d, conv_formulation, max_pool

SETTINGS: list[dict[str, Any]] = [
    {},
    {"padding": 2},
    {"stride": 2, "padding": 1},
    {"dilation": 2},
    {"bias": False},
    {"padding": (2, 0), "stride": (1, 2)},
]


def both(settings: dict[str, Any]) -> tuple[Conv2d, nn.Conv2d]:
    theirs = nn.Conv2d(3, 4, 3, **settings)
    ours = Conv2d(3, 4, 3, **settings)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", ["auto", "direct", "kernel"])
def test_value_and_gradient(name: str, settings: dict[str, Any]) -> None:
    ours, theirs = both(settings)
    x = torch.randn(5, 3, 9, 11)
    results = []
    for layer in (ours, theirs):
        inputs = x.clone().requires_grad_()
        with conv_formulation(name):
            y = layer(inputs)
        results.append((y, *torch.autograd.grad(y.sin().sum(), [inputs, *layer.parameters()])))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", ["auto", "direct"])
def test_gradient_of_many_clients(name: str, settings: dict[str, Any]) -> None:
    ours, theirs = both(settings)
    clients = 3
    params = {key: torch.randn(clients, *p.shape) for key, p in ours.named_parameters()}
    x = torch.randn(clients, 2, 3, 9, 11)

    def loss(layer: nn.Conv2d, params: dict[str, Tensor], x: Tensor) -> Tensor:
        y: Tensor = functional_call(layer, params, (x,))
        return y.sin().sum()

    with conv_formulation(name):
        together = vmap(grad(lambda p, x: loss(ours, p, x), argnums=(0, 1)))(params, x)
    for k in range(clients):
        alone = grad(lambda p, x: loss(theirs, p, x), argnums=(0, 1))({n: p[k] for n, p in params.items()}, x[k])
        for n, p in alone[0].items():
            torch.testing.assert_close(together[0][n][k], p, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(together[1][k], alone[1], rtol=1e-4, atol=1e-4)


def test_unknown_formulation() -> None:
    with pytest.raises(InputError, match="auto, direct, kernel"), conv_formulation("winograd"):
        pass


def test_batched_is_seen_through_transforms() -> None:
    seen: list[bool] = []

    def f(p: Tensor) -> Tensor:
        seen.append(is_vmapped(p))
        return p.sum()

    grad(f)(torch.ones(3))
    vmap(grad(f))(torch.ones(2, 3))
    grad(lambda p: vmap(f)(p).sum())(torch.ones(2, 3))
    assert seen == [False, True, True]


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (2, 3)])
def test_max_pool_with_equals(size: tuple[int, int]) -> None:
    x = torch.randint(0, 3, (4, 2, 3, *size)).float()  # many equals
    weight = torch.randn(4, 2, 3, size[0] // 2, size[1] // 2)
    ours = vmap(grad(lambda x, w: (max_pool(x) * w).sum()))(x, weight)
    for k in range(4):
        inputs = x[k].clone().requires_grad_()
        theirs = F.max_pool2d(inputs, 2)
        assert torch.equal(max_pool(x[k]), theirs)
        (wanted,) = torch.autograd.grad((theirs * weight[k]).sum(), inputs)
        assert torch.equal(ours[k], wanted)
