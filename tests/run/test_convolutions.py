"""Convolution kernels are compared with torch's own before a run trusts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from motley.core.keys import Key
from motley.nets import client_conv_kernels, conv
from motley.nets.zoo import build
from motley.run.executors import convolutions
from motley.run.executors.convolutions import formulation
from tests.kernels import DEVICE, needs_kernels

pytestmark = needs_kernels

SHAPE = (1, 8, 8)


@pytest.fixture(autouse=True)
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(conv, "usable", lambda tensor: tensor.dtype == torch.float32)
    monkeypatch.setattr(convolutions, "_seen", {})
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def chosen(precision: str, model: str = "cnn_rebafl(channels=[4, 6], padding=2)") -> str:
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    net = build(model, SHAPE, 4, 0, Key.root(3))
    return formulation(net, SHAPE, 5, torch.device(DEVICE), precision)


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_kernels_that_work_are_used(precision: str) -> None:
    assert chosen(precision) == "auto"


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_a_forgotten_border_is_seen(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compiler had it: the gradient of the second convolution's input is taken from beyond the image."""
    forward, calls = client_conv_kernels.forward, []

    def wrong(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        calls.append(x)
        y, which = forward(x, *rest)
        return (y.roll(1, dims=2), which) if rest[1] is None else (y, which)  # without bias: the way back

    monkeypatch.setattr(client_conv_kernels, "forward", wrong)
    with pytest.warns(UserWarning, match="quick convolutions do not work here .*off by"):
        assert chosen(precision) == "direct"
    n = len(calls)
    assert chosen(precision) == "direct", "remembered"
    assert len(calls) == n


def test_kernels_that_fail_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(client_conv_kernels, "forward", broken)
    with pytest.warns(UserWarning, match="no such instruction"):
        assert chosen("tf32x3") == "direct"


def test_models_without_convolutions_need_no_look() -> None:
    assert chosen("tf32", "mlp(hidden=[8])") == "auto"
    assert convolutions._seen == {}
