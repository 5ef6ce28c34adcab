"""Whether kernels are trusted: only where they were seen to compute the gradients that torch computes.

Kernels are compiled where they run, and a compiler may be wrong: one lost the border of images of eight by eight
pixels. Such gradients are finite and train, so nobody would notice.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.func import grad, vmap

from motley.core.acceleration import product_precision, without_kernels
from motley.core.network import Network
from motley.data.dataset import Dataset

ALLOWED = {"tf32": 0.2, "tf32x3": 0.01}  # of a tensor's gradient; rounding may change which of four pixels is largest
seen: dict[tuple[object, ...], bool] = {}  # what was found out, by network, samples, device and precision


def trusted(net: Network, dataset: Dataset, batch: int, device: torch.device) -> bool:
    """Whether kernels give the gradients of two clients with samples of this data set; a warning where not.

    It is found out once per process for every network, number of samples and precision.
    """
    sizes = tuple((slot.name, slot.shape) for slot in net.layout.slots)
    key = (str(net.module), sizes, dataset.input_shape, batch, device, product_precision())
    if key not in seen:
        trouble = _trouble(net, dataset, batch, device)
        seen[key] = not trouble
        if trouble:
            warnings.warn(f"The quick kernels do not work here ({trouble}); torch's own are used.", stacklevel=3)
    return seen[key]


def _trouble(net: Network, dataset: Dataset, batch: int, device: torch.device) -> str:
    """What is wrong with the kernels; empty if nothing."""
    rows = torch.arange(2 * batch, device=dataset.x.device) % len(dataset.x)
    x = dataset.inputs(dataset.x[rows].to(device))
    x = x.view(2, batch, *x.shape[1:])
    params = (net.initial() * torch.tensor([[1.0], [0.9]])).to(device)
    try:
        off = error(net, slopes(net, params, x), slopes(net, params, x, kernels=False))
    except Exception as failure:  # whatever a compiler may raise
        return f"{type(failure).__name__}: {failure}".splitlines()[0]
    return "" if off <= ALLOWED[product_precision()] else f"a gradient is off by {100 * off:.0f} %"


def slopes(net: Network, params: Tensor, x: Tensor, kernels: bool = True) -> Tensor:
    """Clients' gradients [K, P] of a smooth function of the logits."""
    with nullcontext() if kernels else without_kernels(), torch.no_grad():
        return vmap(grad(lambda flat, x: torch.sin(net(flat, x).logits).sum()))(params, x)


def error(net: Network, found: Tensor, expected: Tensor) -> float:
    """The largest error of a tensor's gradient, of its own size."""
    pieces = [slice(slot.start, slot.stop) for slot in net.layout.slots]
    errors = [(found[:, at] - expected[:, at]).norm() / expected[:, at].norm().clamp_min(1e-12) for at in pieces]
    return float(torch.stack(errors).nan_to_num(torch.inf).max())
