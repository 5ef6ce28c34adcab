"""One gradient of many clients' CNNs: by Motley's kernels and by torch's own convolutions, in time and in digits.

The networks are those of the papers, with as many clients and images as theirs. Weights are the first ones and images
are random; the gradient is that of a smooth function of the logits. Times are of the gradient alone, replayed as a CUDA
graph. Errors are against float64, of the tensor of the model whose gradient is off the most, in parts of its own size.
Where the largest of four pixels changes by rounding the gradient jumps, so a percent or two in TF32 are no mistake.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from motley.bench.workloads import precision
from motley.core.acceleration import available
from motley.core.errors import InputError, UnknownNameError
from motley.core.keys import Key
from motley.engine.batched.trace import Captured
from motley.engine.kernels.kernel_check import error, slopes
from motley.nets.zoo import build

Row = dict[str, Any]
REPEATS = 20


class Shape(NamedTuple):
    """A network, the images it sees, and how many clients train it on how many of them."""

    model: str
    image: tuple[int, int, int]
    clients: int
    batch: int


SHAPES = {
    "ama": Shape("cnn_ama", (1, 28, 28), 10, 50),
    "rebafl_grey": Shape("cnn_rebafl", (1, 28, 28), 25, 50),
    "rebafl_colour": Shape("cnn_rebafl", (3, 32, 32), 25, 50),
    "leaf": Shape("cnn_leaf(hidden=128)", (1, 28, 28), 20, 10),
    "pfl": Shape("cnn_pfl", (3, 32, 32), 50, 10),
    "radfed": Shape("cnn_radfed", (3, 32, 32), 6, 16),
}


def convolutions(names: Sequence[str], name: str, tell: Callable[[str], None] = lambda _: None) -> list[Row]:
    """A row per network, on this machine's GPU; ``name`` is the precision."""
    for one in names:
        if one not in SHAPES:
            raise UnknownNameError("network", one, SHAPES)
    if not available():
        raise InputError("The kernels for convolutions need a CUDA device and Triton; there is none here.")
    rows = []
    for one in names or SHAPES:
        tell(f"{one} ...")
        rows.append(measured(one, SHAPES[one], torch.device("cuda"), name))
    return rows


def measured(case: str, shape: Shape, device: torch.device, name: str) -> Row:
    """One network, both ways."""
    net = build(shape.model, shape.image, 10, 0, Key.root(0))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape.clients, shape.batch, *shape.image, generator=generator).to(device)
    params = net.initial().to(device) * torch.linspace(0.9, 1.1, shape.clients, device=device)[:, None]
    exact = slopes(net, params.double(), x.double())
    row: Row = {"case": case, "device": device.type, "precision": name, "clients": shape.clients, "batch": shape.batch}
    with precision(name):
        for way in ("kernels", "torch"):
            taken = partial(slopes, net, params, x, kernels=way == "kernels")
            row[f"us_{way}"] = round(1e6 * _seconds(taken, device), 1)
            row[f"error_{way}"] = float(f"{error(net, taken(), exact):.2g}")
    row["times_as_fast"] = round(row["us_torch"] / row["us_kernels"], 2)
    return row


def _seconds(function: Callable[[], Tensor], device: torch.device) -> float:
    """Of one call: the mean of several, after a first."""

    def call() -> None:
        function()

    call()
    again = Captured(call, None, lambda: lambda: None) if device.type == "cuda" else call
    again()
    _wait(device)
    begun = time.perf_counter()
    for _ in range(REPEATS):
        again()
    _wait(device)
    return (time.perf_counter() - begun) / REPEATS


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
