"""The LSTM kernels against the layer written from gates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from motley.core import acceleration
from motley.core.acceleration import without_kernels
from motley.core.keys import Key
from motley.nets.lstm import LSTMLayer
from motley.nets.zoo import build
from tests.kernels import DEVICE, Launched, needs_kernels

pytestmark = needs_kernels


@pytest.fixture(autouse=True)
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "can_take", lambda tensor: tensor.dtype == torch.float32)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


@pytest.mark.parametrize(
    ("clients", "texts", "times", "inputs", "hidden"),
    [(3, 4, 5, 6, 20), (2, 17, 3, 5, 16), (2, 3, 1, 4, 8), (2, 131, 2, 3, 70)],
)
def test_layer(clients: int, texts: int, times: int, inputs: int, hidden: int) -> None:
    layer = LSTMLayer(inputs, hidden).to(DEVICE)
    named = dict(layer.named_parameters())
    # One table of all parameters: clients lie apart.
    table = drawn(clients, sum(p.numel() for p in named.values()) + 5) / 3
    params, start = {}, 2
    for name, p in named.items():
        params[name] = table[:, start : start + p.numel()].view(clients, *p.shape)
        start += p.numel()
    x = drawn(clients, texts, times, inputs)

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        states: Tensor = functional_call(layer, params, (x,))
        return (states * states.cos()).sum()

    slopes = vmap(grad(loss, argnums=(0, 1)))
    found, traced = slopes(params, x), make_fx(slopes)(params, x)
    with Launched() as launched:
        again = traced(params, x)
    assert launched.names.count("motley::lstm_backward") == 1
    with without_kernels():
        wanted = slopes(params, x)
        value = vmap(loss)(params, x)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(again, wanted, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(vmap(loss)(params, x), value, atol=1e-4, rtol=1e-5)


def test_network() -> None:
    """Two layers, an embedding that many clients look up, and one client alone, which takes the plain way."""
    net = build("char_lstm(embedding=3, hidden=10)", (4,), 7, 7, Key.root(0))
    x = torch.randint(0, 7, (2, 5, 4), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    flat = net.initial().to(DEVICE) * torch.tensor([[1.0], [2.0]], device=DEVICE)

    def loss(flat: Tensor, x: Tensor) -> Tensor:
        return net(flat, x).logits.square().sum()

    together = vmap(grad(loss))(flat, x)
    for k in range(2):
        torch.testing.assert_close(together[k], grad(loss)(flat[k], x[k]), atol=1e-5, rtol=1e-4)
