"""``motley bench convolutions``: times and errors of kernels beside torch's own."""

from __future__ import annotations

import pytest
import torch

from motley.bench import convolutions as bench
from motley.core import acceleration
from motley.core.errors import InputError, UnknownNameError
from motley.engine.kernels import conv_kernels
from tests.kernels import DEVICE, needs_kernels

TINY = bench.Shape("cnn_rebafl(channels=[4, 6], padding=2)", (1, 8, 8), 2, 3)


@needs_kernels
@pytest.mark.parametrize(("precision", "allowed"), [("float32", 1e-5), ("tf32", 0.1)])
def test_row(precision: str, allowed: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "can_take", lambda tensor: tensor.dtype == torch.float32)
    called, forward = [], conv_kernels.forward
    monkeypatch.setattr(conv_kernels, "forward", lambda *args: called.append(1) or forward(*args))
    monkeypatch.setattr(bench, "REPEATS", 1)
    row = bench.measured("tiny", TINY, torch.device(DEVICE), precision)
    assert called, "the kernels ran"
    assert row["error_kernels"] < allowed
    assert row["error_torch"] < allowed
    assert row["times_as_fast"] == pytest.approx(row["us_torch"] / row["us_kernels"], rel=0.01, abs=0.01)
    assert (row["case"], row["clients"], row["batch"], row["precision"]) == ("tiny", 2, 3, precision)


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="ama"):
        bench.convolutions(["amma"], "tf32")
    monkeypatch.setattr(bench, "available", lambda: False)
    with pytest.raises(InputError, match="need a CUDA device"):
        bench.convolutions([], "tf32")
