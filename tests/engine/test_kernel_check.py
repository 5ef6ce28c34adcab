"""Kernels are compared with torch's own operations before a run trusts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from motley.core import acceleration
from motley.core.keys import Key
from motley.data.dataset import Dataset
from motley.engine.kernels import conv_kernels, kernel_check
from motley.nets.zoo import build
from tests.kernels import DEVICE, needs_kernels

pytestmark = needs_kernels

SHAPE = (1, 8, 8)


@pytest.fixture(autouse=True)
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(acceleration, "can_take", lambda tensor: tensor.dtype == torch.float32)
    monkeypatch.setattr(kernel_check, "seen", {})
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def trusted(tf32: bool, model: str = "cnn_rebafl(channels=[4, 6], padding=2)") -> bool:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    x = torch.randn(9, *SHAPE, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    y = torch.zeros(9, dtype=torch.int64, device=DEVICE)
    net = build(model, SHAPE, 4, 0, Key.root(3))
    return kernel_check.trusted(net, Dataset("random", x, y, x, y, 4, kind="image"), 5, torch.device(DEVICE))


@pytest.mark.parametrize("tf32", [True, False])
def test_kernels_that_work_are_trusted(tf32: bool) -> None:
    assert trusted(tf32)


@pytest.mark.parametrize("tf32", [True, False])
def test_a_forgotten_border_is_seen(tf32: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compiler had it: the gradient of the second convolution's input is taken from beyond the image."""
    forward, calls = conv_kernels.forward, []

    def wrong(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        calls.append(x)
        y, which = forward(x, *rest)
        return (y.roll(1, dims=2), which) if rest[1] is None else (y, which)  # without bias: the way back

    monkeypatch.setattr(conv_kernels, "forward", wrong)
    with pytest.warns(UserWarning, match="quick kernels do not work here .*off by"):
        assert not trusted(tf32)
    n = len(calls)
    assert not trusted(tf32), "remembered"
    assert len(calls) == n


def test_kernels_that_fail_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(conv_kernels, "forward", broken)
    with pytest.warns(UserWarning, match="no such instruction"):
        assert not trusted(False)
