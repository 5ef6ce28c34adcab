"""Formulas against numbers worked out by hand, and optimizers against torch's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from motley.client.correct import clip_gradient
from motley.client.minibatch import minibatches, n_steps, n_steps_each
from motley.client.optimizer import make_optimizer
from motley.client.trainer import Span, span_of
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import Part, compose
from motley.core.tasks import NOTHING, Assignment, Weights
from motley.core.types import Data, Plan, Round, Setting, Updates
from motley.server.aggregate import layerwise_mean, plain_mean
from motley.server.method_server import MethodServer
from motley.server.step import mix_with_previous, server_adagrad, server_adam, server_momentum, server_yogi
from motley.server.workload import partial_work
from tests.tiny import filled


def small_net() -> Network:
    """Two layers: 2 weights + 1 bias, then 2 weights."""
    return Network(nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 2, bias=False)))


def updates(deltas: list[list[float]], n: list[float], trained: list[list[float]] | None = None) -> Updates:
    delta = torch.tensor(deltas)
    k = len(deltas)
    zero = torch.zeros(k)
    layers = torch.tensor(trained) if trained is not None else torch.ones(k, 2)
    return Updates(
        torch.arange(k), torch.ones(k), zero, torch.zeros_like(delta), delta, layers, torch.tensor(n), zero, zero,
        zero, zero, zero, {},
    )  # fmt: skip


def at(number: int = 1) -> Round:
    return Round(number, Key.root(0), 2, 0.0)


def step(part: Part, *deltas: float) -> list[float]:
    """The one weight of a global model that begins at 0, after an update with each of these changes in turn."""
    net, w = Network(nn.Linear(1, 1, bias=False)), torch.zeros(1)
    server = MethodServer(compose(part), Setting(net, w, 2))
    result = []
    for number, delta in enumerate(deltas, 1):
        w = server.aggregate(at(number), w, updates([[delta]], [1.0], [[1.0]]))
        result.append(w.item())
    return result


def test_weighted_mean() -> None:
    w = layerwise_mean(
        small_net(), torch.full((5,), 10.0), updates([[1.0] * 5, [4.0] * 5], [1.0, 2.0]), torch.tensor([1.0, 2.0])
    )
    assert torch.allclose(w, torch.full((5,), 13.0))


def test_each_layer_is_averaged_over_those_who_trained_it() -> None:
    """First layer: only client 1 (weight 3). Second: both, (1 * 2 + 3 * 6) / 4 = 5."""
    given = updates([[9.0, 9, 9, 2, 2], [1.0, 1, 1, 6, 6]], [1.0, 3.0], [[0.0, 1.0], [1.0, 1.0]])
    w = layerwise_mean(small_net(), torch.zeros(5), given, given.n)
    assert torch.allclose(w, torch.tensor([1.0, 1, 1, 5, 5]))


def test_a_layer_nobody_trained_keeps_its_weights() -> None:
    given = updates([[9.0, 9, 9, 2, 2], [1.0, 1, 1, 6, 6]], [1.0, 3.0], [[0.0, 1.0], [0.0, 0.0]])
    w = layerwise_mean(small_net(), torch.full((5,), 7.0), given, given.n)
    assert w.tolist() == [7, 7, 7, 9, 9]


def test_weights_of_zero_leave_the_model() -> None:
    given = updates([[1.0] * 5], [1.0])
    assert layerwise_mean(small_net(), torch.full((5,), 3.0), given, torch.zeros(1)).tolist() == [3.0] * 5


def test_plain_mean_undoes_the_sample_counts() -> None:
    given = updates([[0.0] * 5] * 3, [1.0, 5.0, 25.0])
    assert torch.allclose(given.n * filled(plain_mean().weigh)(None, at(), given), torch.ones(3))


def test_mixing_by_hand() -> None:
    """alpha_1 = 0.3, alpha_2 = 0.4, alpha_3 would be 0.5 but stops at 0.45; every round proposes w + 10."""
    got = step(mix_with_previous(alpha=0.2, slope=0.1, maximum=0.45), 10.0, 10.0, 10.0)
    assert got == pytest.approx([7.0, 7.0 + 6.0, 7.0 + 6.0 + 5.5])


def test_mixing_takes_a_schedule() -> None:
    got = step(mix_with_previous(alpha=lambda t: t / 10), 10.0, 10.0)
    assert got == pytest.approx([9.0, 17.0])


def test_momentum_by_hand() -> None:
    """v = 1, 0.5 + 1, 0.75 - 2; w = w + 2 v."""
    got = step(server_momentum(beta=0.5, lr=2.0), 1.0, 1.0, -2.0)
    assert got == pytest.approx([2.0, 5.0, 2.5])


@pytest.mark.parametrize(
    ("part", "second"),
    [
        (server_adam(lr=1.0, beta1=0.5, beta2=0.75, tau=1.0), [0.75 + 0.25 * 4, 0.75 * 1.75 + 0.25 * 4]),
        (server_yogi(lr=1.0, beta1=0.5, beta2=0.75, tau=1.0), [1 + 0.25 * 4, 2 + 0.25 * 4]),
        (server_adagrad(lr=1.0, beta1=0.5, tau=1.0), [1 + 4, 1 + 4 + 4]),
    ],
)
def test_adaptive_steps_by_hand(part: Part, second: list[float]) -> None:
    """delta = 2 twice: m = 1, 1.5; w = sum m / (sqrt(v) + 1)."""
    first = 1.0 / (second[0] ** 0.5 + 1)
    both = first + 1.5 / (second[1] ** 0.5 + 1)
    assert step(part, 2.0, 2.0) == pytest.approx([first, both])


def test_yogi_goes_down_where_adam_would_forget() -> None:
    """v = 4 > delta^2 = 1: Yogi takes 0.25 off, however large v is."""
    part = server_yogi(lr=1.0, beta1=0.0, beta2=0.75, tau=2.0)
    assert step(part, 1.0) == pytest.approx([1.0 / (3.75**0.5 + 2.0)])


def test_clipping() -> None:
    hook = filled(clip_gradient(norm=1.0).gradient)
    nobody: Any = None
    assert torch.allclose(hook(nobody, nobody, torch.tensor([3.0, 4.0])), torch.tensor([0.6, 0.8]))
    assert hook(nobody, nobody, torch.tensor([0.3, 0.4])).tolist() == torch.tensor([0.3, 0.4]).tolist()
    assert hook(nobody, nobody, torch.zeros(2)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("spec", "theirs"),
    [
        ("sgd", lambda p: torch.optim.SGD(p, 0.05)),
        ("sgd(momentum=0.9)", lambda p: torch.optim.SGD(p, 0.05, momentum=0.9)),
        (
            "sgd(momentum=0.5, weight_decay=0.1)",
            lambda p: torch.optim.SGD(p, 0.05, momentum=0.5, weight_decay=0.1),
        ),
        ("sgd(weight_decay=0.1)", lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.1)),
        ("adamw", lambda p: torch.optim.AdamW(p, 0.05)),
        ("adamw(weight_decay=0.2, beta1=0.8)", lambda p: torch.optim.AdamW(p, 0.05, (0.8, 0.999), weight_decay=0.2)),
        ("rmsprop", lambda p: torch.optim.RMSprop(p, 0.05)),
        (
            "rmsprop(alpha=0.9, momentum=0.5, weight_decay=0.1)",
            lambda p: torch.optim.RMSprop(p, 0.05, 0.9, momentum=0.5, weight_decay=0.1),
        ),
        ("adagrad(weight_decay=0.1)", lambda p: torch.optim.Adagrad(p, 0.05, weight_decay=0.1)),
        ("torch_optim(name='NAdam', weight_decay=0.1)", lambda p: torch.optim.NAdam(p, 0.05, weight_decay=0.1)),
        ("torch_optim(name='Rprop')", lambda p: torch.optim.Rprop(p, 0.05)),
        ("adam", lambda p: torch.optim.Adam(p, 0.05)),
        (
            "adam(beta1=0.8, beta2=0.9, eps=0.001, weight_decay=0.1)",
            lambda p: torch.optim.Adam(p, 0.05, betas=(0.8, 0.9), eps=0.001, weight_decay=0.1),
        ),
    ],
)
def test_local_optimizers_are_torch_optim(spec: str, theirs: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(7, generator=generator)
    target = torch.randn(7, generator=generator)
    leaf = w.clone().requires_grad_()
    reference, ours = theirs([leaf]), make_optimizer(spec)
    state = ours.init(w)
    for _ in range(8):
        reference.zero_grad()
        ((leaf - target) ** 4).sum().backward()
        reference.step()
        w, state = ours.step(state, w, 4 * (w - target) ** 3, torch.tensor(0.05))
    assert torch.allclose(w, leaf.detach(), atol=1e-6)


@pytest.mark.parametrize(
    ("epochs", "n", "batch", "steps"),
    [(1.0, 10, 5, 2), (1.0, 11, 5, 3), (3.5, 40, 10, 14), (0.5, 40, 10, 2), (0.01, 40, 10, 1), (2.0, 3, 10, 2)],
)
def test_steps_of_fractional_epochs(epochs: float, n: int, batch: int, steps: int) -> None:
    assert n_steps(epochs, n, batch) == steps
    assert n_steps_each(np.array([epochs, epochs]), np.array([n, n]), batch).tolist() == [steps, steps]


def test_minibatches_pass_over_all_samples_each_epoch() -> None:
    data = Data(torch.arange(11.0)[:, None], torch.arange(11))
    seen = list(minibatches(Key.root(1).tensor(), data, 4, 8))
    assert [len(batch.y) for batch, _ in seen] == [4, 4, 3, 4, 4, 3, 4, 4]
    assert [ended for _, ended in seen] == [False, False, True] * 2 + [False, False]
    first = torch.cat([batch.y for batch, _ in seen[:3]])
    second = torch.cat([batch.y for batch, _ in seen[3:6]])
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(11))
    assert first.tolist() != second.tolist()
    assert all(torch.equal(batch.x[:, 0].long(), batch.y) for batch, _ in seen)


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_changes_the_memory_and_not_the_minibatches(channels: int) -> None:
    data = Data(torch.randn(11, channels, 4, 6), torch.arange(11))
    plain = minibatches(Key.root(1).tensor(), data, 4, 8)
    moved = minibatches(Key.root(1).tensor(), data, 4, 8, channels_last=True)
    for (one, _), (other, _) in zip(plain, moved, strict=True):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)
        assert other.x.stride() == (24 * channels, 1, 6 * channels, channels)


@pytest.mark.parametrize(
    ("epochs", "floor", "affordable", "partial", "expected"),
    [
        (5.0, 5.0, 7.0, False, (5.0, 5.0)),  # enough
        (5.0, 5.0, 4.0, False, (4.0, 0.0)),  # all or nothing
        (5.0, 2.0, 4.0, False, (4.0, 2.0)),  # the checkpoint at the floor
        (5.0, 2.0, 1.0, False, (1.0, 0.0)),  # below the floor
        (5.0, 2.0, 4.0, True, (4.0, 4.0)),  # what was reached
        (5.0, 2.0, 1.0, True, (1.0, 0.0)),  # what was reached, but at least the floor
        (5.0, 0.0, 1.0, True, (1.0, 1.0)),
        (5.0, 0.0, 0.0, True, (0.0, 0.0)),
        (5.0, 0.0, 3.0, False, (3.0, 0.0)),
    ],
)
def test_how_much_work_is_done(
    epochs: float, floor: float, affordable: float, partial: bool, expected: tuple[float, float]
) -> None:
    assert work(epochs, floor, affordable, partial) == expected


def work(epochs: float, floor: float, affordable: float, partial: bool) -> tuple[float, float]:
    """Epochs that a device trains, and those whose result it sends."""
    start = Weights(torch.zeros(1))
    a = Assignment("1.0", 0, 1, start, NOTHING, {}, epochs, floor, partial, 0.1, Key.root(0))
    sent, spent = a.afforded(affordable)
    assert sent._replace(epochs=epochs) == a
    return spent, sent.epochs


def test_a_plan_that_is_just_affordable_is_done() -> None:
    """0.1 as float32 is a little more than 0.1."""
    wanted = torch.full((1,), 0.1).item()
    assert wanted > 0.1
    assert work(wanted, wanted, 0.1, False) == (wanted, wanted)


def test_partial_work_takes_anything() -> None:
    one = torch.ones(3)
    plan = filled(partial_work().plan)(None, at(), torch.arange(3), Plan(2 * one, 2 * one, 0.1 * one, 0 * one))
    assert plan.floor.tolist() == [0, 0, 0]
    assert plan.partial.tolist() == [1, 1, 1]
    assert plan.epochs.tolist() == [2, 2, 2]


def test_span_of_trained_layers() -> None:
    assert span_of(torch.tensor([1.0, 1, 1])) == (Span(0, 3), True)
    assert span_of(torch.tensor([0.0, 1, 1])) == (Span(1, 3), True)
    assert span_of(torch.tensor([1.0, 0, 1, 0])) == (Span(0, 3), False)
    assert span_of(torch.zeros(3)) == (Span(0, 0), True)
