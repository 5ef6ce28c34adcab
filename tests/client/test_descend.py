"""The quick step of plain SGD is the general one."""

from __future__ import annotations

import torch
from torch import nn

from motley.client.optimizer import SGD
from motley.client.trainer import Descent, Span, Training, move, new_client, objective
from motley.core.network import Network
from motley.core.part import compose
from motley.core.types import Batch, Facts


class WithIdle(nn.Module):
    """Has a layer that the forward pass does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(3, 3)
        self.first = nn.Linear(6, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.first(x).relu())


def test_descent_is_objective_and_move() -> None:
    torch.manual_seed(0)
    net = Network(WithIdle())
    training = Training(net, compose(name="plain"), SGD(), 5)
    batch = Batch(torch.randn(5, 6), torch.tensor([0, 1, 2, 3, 0]))
    zero = torch.tensor(0.0)
    facts = Facts(zero, zero, zero, zero, torch.tensor(0.1), zero, zero, zero, zero, zero)
    c = new_client(training, net.initial(), facts, zero)
    free = c.params.clone().requires_grad_()
    loss, aside = objective(training, c, free, Span(0, net.n_layers), batch)
    (grad,) = torch.autograd.grad(loss, free)
    expected, _ = move(training, c, {}, grad, None, facts.lr)
    quick = Descent(training, c, Span(0, net.n_layers))
    quick_term, params = quick.step(batch, c.facts.lr), quick.params
    torch.testing.assert_close(params, expected, rtol=0, atol=1e-7)
    assert torch.equal(quick_term, aside.data_term)
    idle = slice(*next((layer.start, layer.stop) for layer in net.layout.layers if layer.name == "idle"))
    assert torch.equal(params[idle], c.params[idle])
    assert not torch.equal(params, c.params)
    last = net.layout.layers[-1].start
    partly = Descent(training, c, Span(net.n_layers - 1, net.n_layers))
    partly.step(batch, c.facts.lr)
    some = partly.params
    assert torch.equal(some[:last], c.params[:last])
    torch.testing.assert_close(some[last:], expected[last:], rtol=0, atol=1e-7)
