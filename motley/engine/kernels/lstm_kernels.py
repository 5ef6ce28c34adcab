"""The Triton kernels behind `motley.engine.kernels.lstm_op`; imported only where they run.

One launch per time: a program takes some hidden units of a client, with their four gates, and some of its texts. gates
and acts lie as [K, B, T, 4 H], hidden and cell as [K, B, T, H]; weights [4 H, H] of a client begin ROW numbers after
those of the one before.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _texts(client, u, b, t, B, T, H: tl.constexpr):
    """Where time t of a client's texts b lies [BB, 1], and which texts and hidden units there are [BB, BH]."""
    return ((client * B + b) * T + t)[:, None], (b < B)[:, None] & (u < H)[None, :]


@triton.jit
def _four(at, live, H: tl.constexpr):
    """The four gates of hidden units."""
    i = tl.load(at, mask=live, other=0.0)
    f = tl.load(at + H, mask=live, other=0.0)
    g = tl.load(at + 2 * H, mask=live, other=0.0)
    o = tl.load(at + 3 * H, mask=live, other=0.0)
    return i, f, g, o


@triton.jit(do_not_specialize=["t"])
def _forward_kernel(
    gates, weight, hidden, cell, acts, t, B, T, ROW, H: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr,
    BB: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Time t: the gates with the last hidden state's share, their activations, and the new state."""
    client, u = tl.program_id(1).to(tl.int64), tl.program_id(0) * BH + tl.arange(0, BH)
    b = tl.program_id(2) * BB + tl.arange(0, BB)
    at, live = _texts(client, u, b, t, B, T, H)
    place = at * (4 * H) + u[None, :]
    i, f, g, o = _four(gates + place, live, H)
    state = tl.zeros((BB, BH), dtype=tl.float32)
    if not FIRST:
        weight += client * ROW
        for begin in range(0, H, BK):
            k = begin + tl.arange(0, BK)
            h = tl.load(hidden + (at - 1) * H + k[None, :], mask=(b < B)[:, None] & (k < H)[None, :], other=0.0)
            taps = u[None, :] * H + k[:, None]
            inside = (u < H)[None, :] & (k < H)[:, None]
            i = tl.dot(h, tl.load(weight + taps, mask=inside, other=0.0), i, input_precision=PRECISION)
            f = tl.dot(h, tl.load(weight + taps + H * H, mask=inside, other=0.0), f, input_precision=PRECISION)
            g = tl.dot(h, tl.load(weight + taps + 2 * H * H, mask=inside, other=0.0), g, input_precision=PRECISION)
            o = tl.dot(h, tl.load(weight + taps + 3 * H * H, mask=inside, other=0.0), o, input_precision=PRECISION)
        state = tl.load(cell + (at - 1) * H + u[None, :], mask=live, other=0.0)
    i = tl.sigmoid(i)
    f = tl.sigmoid(f)
    g = _tanh(g)
    o = tl.sigmoid(o)
    state = f * state + i * g
    tl.store(acts + place, i, mask=live)
    tl.store(acts + place + H, f, mask=live)
    tl.store(acts + place + 2 * H, g, mask=live)
    tl.store(acts + place + 3 * H, o, mask=live)
    tl.store(cell + at * H + u[None, :], state, mask=live)
    tl.store(hidden + at * H + u[None, :], o * _tanh(state), mask=live)


@triton.jit(do_not_specialize=["t"])
def _backward_kernel(
    grad, weight, cell, acts, slopes, carry, t, B, T, ROW, H: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
    PRECISION: tl.constexpr, BB: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Time t: the gates' gradients, from those of time t + 1 (slopes) and the cell's (carry [K, B, H])."""
    client, u = tl.program_id(1).to(tl.int64), tl.program_id(0) * BH + tl.arange(0, BH)
    b = tl.program_id(2) * BB + tl.arange(0, BB)
    at, live = _texts(client, u, b, t, B, T, H)
    place = at * (4 * H) + u[None, :]
    to_hidden = tl.load(grad + at * H + u[None, :], mask=live, other=0.0)
    kept = ((client * B + b) * H)[:, None] + u[None, :]
    to_cell = tl.zeros((BB, BH), dtype=tl.float32)
    if not LAST:
        weight += client * ROW
        for begin in range(0, 4 * H, BK):
            j = begin + tl.arange(0, BK)
            after = (at + 1) * (4 * H) + j[None, :]
            slope = tl.load(slopes + after, mask=(b < B)[:, None] & (j < 4 * H)[None, :], other=0.0)
            taps = tl.load(
                weight + j[:, None] * H + u[None, :], mask=(j < 4 * H)[:, None] & (u < H)[None, :], other=0.0
            )
            to_hidden = tl.dot(slope, taps, to_hidden, input_precision=PRECISION)
        to_cell = tl.load(carry + kept, mask=live, other=0.0)
    i, f, g, o = _four(acts + place, live, H)
    now = _tanh(tl.load(cell + at * H + u[None, :], mask=live, other=0.0))
    to_cell += to_hidden * o * (1.0 - now * now)
    old = tl.zeros((BB, BH), dtype=tl.float32)
    if not FIRST:
        old = tl.load(cell + (at - 1) * H + u[None, :], mask=live, other=0.0)
    tl.store(slopes + place, to_cell * g * i * (1.0 - i), mask=live)
    tl.store(slopes + place + H, to_cell * old * f * (1.0 - f), mask=live)
    tl.store(slopes + place + 2 * H, to_cell * i * (1.0 - g * g), mask=live)
    tl.store(slopes + place + 3 * H, to_hidden * now * o * (1.0 - o), mask=live)
    tl.store(carry + kept, to_cell * f, mask=live)


def _settings(batch: int, many: dict[str, int]) -> dict[str, int]:
    rows = max(16, triton.next_power_of_2(batch))
    return many if rows > 64 else {"BB": rows, "BH": 16, "BK": 64, "num_warps": 2 if rows == 16 else 4}


# The winners of nine on an H200: 8 clients with 256 texts, 256 hidden units.
FORWARD = {"BB": 64, "BH": 32, "BK": 32, "num_warps": 4}
BACKWARD = {"BB": 128, "BH": 32, "BK": 64, "num_warps": 8}


def _grid(settings: dict[str, int], clients: int, batch: int, units: int) -> tuple[int, int, int]:
    return triton.cdiv(units, settings["BH"]), clients, triton.cdiv(batch, settings["BB"])


def forward(gates: Tensor, weight: Tensor, precision: str) -> tuple[Tensor, Tensor, Tensor]:
    """See `lstm_op.lstm_forward`."""
    k, batch, times, size = gates.shape
    n = size // 4
    hidden, cell = (torch.empty(k, batch, times, n, device=gates.device) for _ in range(2))
    acts = torch.empty_like(gates)
    settings = _settings(batch, FORWARD)
    for t in range(times):
        _forward_kernel[_grid(settings, k, batch, n)](
            gates, weight, hidden, cell, acts, t, batch, times, weight.stride(0),
            H=n, FIRST=t == 0, PRECISION=precision, **settings,
        )  # fmt: skip
    return hidden, cell, acts


def backward(grad: Tensor, weight: Tensor, cell: Tensor, acts: Tensor, precision: str) -> Tensor:
    """See `lstm_op.lstm_backward`."""
    k, batch, times, n = grad.shape
    slopes, carry = torch.empty_like(acts), torch.empty(k, batch, n, device=grad.device)
    settings = _settings(batch, BACKWARD)
    for t in reversed(range(times)):
        _backward_kernel[_grid(settings, k, batch, n)](
            grad, weight, cell, acts, slopes, carry, t, batch, times, weight.stride(0),
            H=n, FIRST=t == 0, LAST=t == times - 1, PRECISION=precision, **settings,
        )  # fmt: skip
    return slopes
