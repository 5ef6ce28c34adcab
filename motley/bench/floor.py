"""The least time a machine needs for a round: its arithmetic and its memory traffic at measured full speed.

    floor = max(operations / matrix-product rate, bytes / copy bandwidth)

Operations are those of `motley.nets.cost`. Bytes are those no schedule of layers can do without: parameters are read
forwards, read backwards and written once in every step of every client; every sample is read once; every layer's
output is written once, read by the next layer and read again backwards.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from motley.client.site import Site
from motley.core.network import Network
from motley.core.tasks import Assignment
from motley.nets.cost import cost_of, flops


class Ceilings(NamedTuple):
    """What a machine can do at best, measured."""

    flops: float  # of a large matrix product, per second
    bandwidth: float  # bytes read and written by a large copy, per second


class Work(NamedTuple):
    """What a round cannot do without."""

    flops: float
    bytes: float

    def seconds(self, ceilings: Ceilings) -> float:
        return max(self.flops / ceilings.flops, self.bytes / ceilings.bandwidth)

    def bound(self, ceilings: Ceilings) -> str:
        """Which of the two ceilings it meets first."""
        return "arithmetic" if self.flops / ceilings.flops > self.bytes / ceilings.bandwidth else "memory"


def ceilings(device: torch.device, repeats: int = 7) -> Ceilings:
    """Measures both, in the precision that is set."""
    cuda = device.type == "cuda"
    n, m = (8192, 1 << 28) if cuda else (1024, 1 << 24)
    a, b = torch.ones(n, n, device=device), torch.ones(n, n, device=device)
    product = torch.empty(n, n, device=device)
    source, target = torch.zeros(m, device=device), torch.zeros(m, device=device)
    multiply = _quickest(lambda: torch.mm(a, b, out=product), device, repeats)
    copy = _quickest(lambda: target.copy_(source), device, repeats)
    return Ceilings(2.0 * n**3 / multiply, 8.0 * m / copy)


def _quickest(action: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Seconds; the shortest of several, since a ceiling is what the machine does undisturbed."""
    seconds = []
    for _ in range(repeats + 2):
        _wait(device)
        begun = time.perf_counter()
        for _ in range(3):
            action()
        _wait(device)
        seconds.append((time.perf_counter() - begun) / 3)
    return min(seconds[2:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def output_numbers(net: Network, x: Tensor) -> float:
    """How many numbers the layers with parameters put out for one sample."""
    sizes: list[int] = []

    def count(module: nn.Module, inputs: Any, output: Tensor) -> None:
        sizes.append(prod(output.shape[1:]))

    modules = [net.module.get_submodule(layer.name) for layer in net.layout.layers]
    hooks = [module.register_forward_hook(count) for module in modules]
    try:
        with torch.no_grad():
            net.module(x[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return float(sum(sizes))


def passes(n: int, steps: int, batch_size: int) -> int:
    """Samples that some steps of a client with n samples train on, each counted as often as it is."""
    whole, left = divmod(steps, -(-n // batch_size))
    return whole * n + min(left * batch_size, n)


def work_of(site: Site, tasks: Sequence[Assignment]) -> Work:
    """Operations and bytes of a round of plain training."""
    dataset, net, facts = site.data.dataset, site.training.net, site.facts(tasks)
    first = dataset.inputs(dataset.x[:1])
    counts = list(zip(facts.n.tolist(), facts.steps.tolist(), strict=True))
    samples = sum(passes(int(n), int(steps), site.training.batch_size) for n, steps in counts)
    steps = int(facts.steps.sum())
    stored = dataset.x[0].numel() * dataset.x.element_size()
    moved = 3 * 4.0 * net.size * steps + samples * (stored + 3 * 4.0 * output_numbers(net, first))
    return Work(samples * flops(cost_of(net, first)), moved)


def median_ms(seconds: Sequence[float]) -> float:
    return 1000.0 * statistics.median(seconds)
