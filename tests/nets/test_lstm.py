"""The LSTM written from gates is torch's LSTM."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from motley.core.keys import Key
from motley.nets import build
from motley.nets.lstm import LSTMLayer


def copy(theirs: nn.LSTM, layer: int) -> LSTMLayer:
    weight: Tensor = getattr(theirs, f"weight_ih_l{layer}")
    ours = LSTMLayer(weight.shape[1], theirs.hidden_size)
    with torch.no_grad():
        ours.weight_input.copy_(weight)
        ours.weight_hidden.copy_(getattr(theirs, f"weight_hh_l{layer}"))
        ours.bias.copy_(getattr(theirs, f"bias_ih_l{layer}") + getattr(theirs, f"bias_hh_l{layer}"))
    return ours


def test_two_layers_equal_torch() -> None:
    theirs = nn.LSTM(5, 7, num_layers=2, batch_first=True)
    ours = nn.Sequential(copy(theirs, 0), copy(theirs, 1))
    x = torch.randn(4, 9, 5)
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, z = ours(mine), theirs(other)[0]
    torch.testing.assert_close(y, z)
    grads = torch.autograd.grad(y.square().sum(), [mine, *ours.parameters()])
    wanted = torch.autograd.grad(z.square().sum(), [other, *theirs.parameters()])
    torch.testing.assert_close(grads[0], wanted[0])
    for layer in (0, 1):
        weight_input, weight_hidden, bias = grads[1 + 3 * layer : 4 + 3 * layer]
        ih, hh, bias_ih, bias_hh = wanted[1 + 4 * layer : 5 + 4 * layer]
        torch.testing.assert_close((weight_input, weight_hidden, bias, bias), (ih, hh, bias_ih, bias_hh))


def test_each_lstm_layer_is_one_layer() -> None:
    net = build("char_lstm", (80,), 60, 60, Key.root(0))
    assert [layer.name for layer in net.layout.layers] == ["embedding", "lstm1", "lstm2", "head"]
    assert [layer.size for layer in net.layout.layers] == [480, 1024 * (8 + 256 + 1), 1024 * (256 + 256 + 1), 257 * 60]


def test_text_ends_at_its_last_word() -> None:
    net = build("text_lstm(hidden=6, embedding=4)", (6,), 2, 20, Key.root(0))
    flat = net.initial()
    short = torch.tensor([[3, 5, 7]])
    padded = torch.tensor([[3, 5, 7, 0, 0, 0]])
    torch.testing.assert_close(net(flat, padded).logits, net(flat, short).logits)
    assert not torch.allclose(net(flat, padded).logits, net(flat, torch.tensor([[3, 5, 0, 0, 0, 0]])).logits)
    assert torch.isfinite(net(flat, torch.zeros(1, 6, dtype=torch.int64)).logits).all()


def test_predictions_are_torch_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gradients the layer is torch's, with them it is written from gates; both say the same."""
    layer, x = LSTMLayer(5, 7), torch.randn(4, 9, 5)
    written, called = layer(x), []
    own = torch.lstm
    monkeypatch.setattr(torch, "lstm", lambda *given: called.append(1) or own(*given))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), written)
        torch.testing.assert_close(torch.vmap(layer)(x[None])[0], written)
    assert called == [1]
