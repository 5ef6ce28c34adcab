"""How a run's convolutions are computed on a GPU: by kernels, once they were seen to compute what torch computes.

Kernels are compiled where they run, and a compiler may be wrong: one lost the border of images of eight by eight
pixels.
Such gradients are finite and train, so nobody would notice.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.func import grad, vmap

from motley.core.network import Network
from motley.nets.conv import Conv2d, conv_formulation

ALLOWED = {"tf32": 0.2, "tf32x3": 0.01}  # of a tensor's gradient; rounding may change which of four pixels is largest
_seen: dict[tuple[object, ...], str] = {}


def formulation(net: Network, shape: tuple[int, ...], batch: int, device: torch.device, precision: str) -> str:
    """``auto``, or ``direct`` with a warning where kernels give gradients of their own; found out once per process.

    shape: of one sample; precision: how products are taken, as `motley.core.kernels.product_precision` says.
    """
    convolutions = [layer for layer in net.module.modules() if isinstance(layer, Conv2d)]
    if not convolutions:
        return "auto"
    sizes = tuple((slot.name, slot.shape) for slot in net.layout.slots)
    key = (sizes, tuple(layer.padding for layer in convolutions), shape, batch, device, precision)
    if key not in _seen:
        _seen[key] = _compared(net, shape, batch, device, ALLOWED[precision])
    return _seen[key]


def _compared(net: Network, shape: tuple[int, ...], batch: int, device: torch.device, allowed: float) -> str:
    generator = torch.Generator().manual_seed(0)
    params = net.initial() * torch.tensor([[1.0], [0.9]])
    x = torch.randn(2, batch, *shape, generator=generator)
    here = params.to(device), x.to(device)
    try:
        off = error(net, slopes(net, *here), slopes(net, *here, "direct"))
        trouble = "" if off <= allowed else f"a gradient is off by {100 * off:.0f} %"
    except Exception as failure:  # whatever a compiler may raise
        trouble = f"{type(failure).__name__}: {failure}".splitlines()[0]
    if not trouble:
        return "auto"
    warnings.warn(f"The quick convolutions do not work here ({trouble}); torch's own are used.", stacklevel=4)
    return "direct"


def slopes(net: Network, params: Tensor, x: Tensor, name: str = "auto") -> Tensor:
    """Gradients [K, P] of a smooth function of the logits."""
    with conv_formulation(name), torch.no_grad():
        return vmap(grad(lambda flat, x: torch.sin(net(flat, x).logits).sum()))(params, x)


def error(net: Network, found: Tensor, expected: Tensor) -> float:
    """The largest error of a tensor's gradient, of its own size."""
    pieces = [slice(slot.start, slot.stop) for slot in net.layout.slots]
    errors = [(found[:, at] - expected[:, at]).norm() / expected[:, at].norm().clamp_min(1e-12) for at in pieces]
    return float(torch.stack(errors).nan_to_num(torch.inf).max())
