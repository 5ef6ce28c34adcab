"""Skews, by name: how each client's samples differ from the same samples elsewhere.

A skew is a factory ``f(dataset, partition, key, **arguments) -> ClientTransform``. Transforms are pure, hold one row of
numbers per client, work on whole batches of rows from many clients and on any device. Several are joined by ``+``:
``rotation(degrees=[0, 90])+noise(levels=[0, 0.3])``.

Where a list of levels is given, client i gets level ``i mod len(levels)``, or that of its cluster where the partition
makes clusters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from motley.core import keys
from motley.core.errors import DataError
from motley.core.keys import Key
from motley.core.registry import Registry, parse
from motley.data.dataset import Dataset
from motley.data.federated import ClientTransform, Partition

SKEWS: Registry[ClientTransform] = Registry("skew")
"""Factories of client transforms; add your own with ``@SKEWS.add(hidden=HIDDEN)``."""
HIDDEN = ("dataset", "partition", "key")


def make_skews(spec: str, dataset: Dataset, partition: Partition, key: Key) -> tuple[ClientTransform, ...]:
    """Transforms from their short form, in the order given; an empty text gives none."""
    calls = parse(spec, "skew") if spec.strip() else []
    return tuple(
        SKEWS.make(call.name, dataset, partition, key.fold("skew", i, call.name), **call.arguments)
        for i, call in enumerate(calls)
    )


@dataclass(frozen=True)
class Rotation:
    """Images turned counter-clockwise by the client's angle."""

    angle: Tensor  # [M] radians

    def __call__(self, x: Tensor, y: Tensor, clients: Tensor) -> tuple[Tensor, Tensor]:
        angle = self.angle.to(x.device)[clients]
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        ratio = x.shape[-1] / x.shape[-2]  # the grid is in units of half the image, which need not be square
        theta = torch.stack([torch.stack([cos, -sin / ratio, zero], -1), torch.stack([sin * ratio, cos, zero], -1)], -2)
        grid = torch.nn.functional.affine_grid(theta, list(x.shape), align_corners=False)
        turned = torch.nn.functional.grid_sample(x, grid, padding_mode="border", align_corners=False)
        return turned, y


@SKEWS.add(hidden=HIDDEN)
def rotation(
    dataset: Dataset, partition: Partition, key: Key, degrees: Sequence[float] = (0, 90, 180, 270)
) -> ClientTransform:
    """Feature skew: a client's images are turned by one of the given angles."""
    _need_images("rotation", dataset)
    return Rotation(torch.deg2rad(_levels("rotation", degrees, partition)))


@dataclass(frozen=True)
class Blur:
    """Images blurred by a Gaussian of the client's width."""

    sigma: Tensor  # [M] pixels
    radius: int

    def __call__(self, x: Tensor, y: Tensor, clients: Tensor) -> tuple[Tensor, Tensor]:
        if self.radius == 0:
            return x, y
        sigma = self.sigma.to(x.device)[clients].clamp_min(1e-3)
        t = torch.arange(-self.radius, self.radius + 1, device=x.device, dtype=x.dtype)
        kernel = torch.exp(-0.5 * (t / sigma[:, None]) ** 2)
        kernel = (kernel / kernel.sum(1, keepdim=True)).repeat_interleave(x.shape[1], 0)  # [B * C, 2 r + 1]
        b, c, h, w = x.shape
        flat = torch.nn.functional.pad(x.reshape(1, b * c, h, w), [self.radius] * 4, mode="replicate")
        conv = torch.nn.functional.conv2d
        flat = conv(flat, kernel[:, None, :, None], groups=b * c)
        return conv(flat, kernel[:, None, None, :], groups=b * c).reshape(b, c, h, w), y


@SKEWS.add(hidden=HIDDEN)
def blur(
    dataset: Dataset, partition: Partition, key: Key, sigmas: Sequence[float] = (0.0, 0.5, 1.0)
) -> ClientTransform:
    """Feature skew: a client's images are blurred by a Gaussian of one of the given widths (pixels)."""
    _need_images("blur", dataset)
    sigma = _levels("blur", sigmas, partition, least=0.0)
    return Blur(sigma, math.ceil(3 * float(sigma.max())))


@dataclass(frozen=True)
class Noise:
    """Gaussian noise of the client's level, the same each time a sample is seen."""

    level: Tensor  # [M] standard deviations of the scaled inputs
    key: Tensor
    by_row = True

    def __call__(self, x: Tensor, y: Tensor, clients: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        level = self.level.to(x.device)[clients]
        sample = torch.arange(len(x), device=x.device) if rows is None else rows
        own = keys.fold_in(keys.fold_in(self.key.to(x.device), clients), sample)
        noise = _normal_rows(own, x[0].numel()).reshape(x.shape)
        return x + level.reshape(-1, *[1] * (x.dim() - 1)) * noise, y


@SKEWS.add(hidden=HIDDEN)
def noise(
    dataset: Dataset, partition: Partition, key: Key, levels: Sequence[float] = (0.0, 0.25, 0.5)
) -> ClientTransform:
    """Feature skew: a client's inputs carry Gaussian noise of one of the given standard deviations."""
    _need_numbers("noise", dataset)
    return Noise(_levels("noise", levels, partition, least=0.0), key.tensor())


@dataclass(frozen=True)
class LabelPermutation:
    """Labels renamed as in the client's cluster."""

    table: Tensor  # [clusters, C] new label of each class
    cluster: Tensor  # [M]
    moves_labels = True

    def __call__(self, x: Tensor, y: Tensor, clients: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.table.to(y.device)[self.cluster.to(y.device)[clients], y]


@SKEWS.add(hidden=HIDDEN)
def label_permutation(dataset: Dataset, partition: Partition, key: Key, clusters: int = 2) -> ClientTransform:
    """Concept shift: each cluster of clients names the classes in its own order (the first keeps theirs)."""
    if clusters < 1:
        raise DataError(f"label_permutation needs at least one cluster, not {clusters}.")
    if not dataset.n_classes:
        raise DataError(f"The skew 'label_permutation' needs classes, but the targets of '{dataset.name}' are numbers.")
    cluster = _clusters(partition, clusters)
    n = int(cluster.max()) + 1
    rows = [torch.arange(dataset.n_classes)]
    rows += [torch.from_numpy(key.fold(k).generator().permutation(dataset.n_classes)) for k in range(1, n)]
    return LabelPermutation(torch.stack(rows), cluster)


@dataclass(frozen=True)
class LocalStandardise:
    """Inputs minus the client's own mean, divided by its own standard deviation."""

    mean: Tensor  # [M, columns] or [M, C, 1, 1]
    std: Tensor

    def __call__(self, x: Tensor, y: Tensor, clients: Tensor) -> tuple[Tensor, Tensor]:
        return (x - self.mean.to(x.device)[clients]) / self.std.to(x.device)[clients], y


@SKEWS.add(hidden=HIDDEN)
def local_standardise(dataset: Dataset, partition: Partition, key: Key) -> ClientTransform:
    """Every client standardises its inputs with its own mean and deviation, per column or colour channel."""
    _need_numbers("local_standardise", dataset)
    m, width = partition.n_clients, dataset.input_shape[0]
    total, square, counted = torch.zeros(m, width), torch.zeros(m, width), torch.zeros(m, 1)
    owner = torch.from_numpy(np.repeat(np.arange(m), partition.sizes))
    index = torch.from_numpy(partition.index)
    for who, rows in zip(owner.split(65536), index.split(65536), strict=True):
        x = dataset.inputs(dataset.x[rows]).reshape(len(rows), width, -1)
        total.index_add_(0, who, x.sum(-1))
        square.index_add_(0, who, (x**2).sum(-1))
        counted.index_add_(0, who, torch.full((len(rows), 1), float(x.shape[-1])))
    mean = total / counted
    std = (square / counted - mean**2).clamp_min(0).sqrt()
    std = torch.where(std > 1e-4, std, torch.ones_like(std))  # a constant column stays at 0
    shape = (m, width, *[1] * (len(dataset.input_shape) - 1))
    return LocalStandardise(mean.reshape(shape), std.reshape(shape))


def _normal_rows(row_keys: Tensor, n: int) -> Tensor:
    """Standard normal draws [B, n], row b from its own key."""
    counter = torch.arange(n, device=row_keys.device)
    raw = keys.bits(row_keys[:, None], counter)
    unit = 1.0 / (1 << 24)
    radius = (-2.0 * torch.log((((raw >> 40) & 0xFFFFFF).to(torch.float32) + 1.0) * unit)).sqrt()
    return radius * torch.cos(((raw >> 16) & 0xFFFFFF).to(torch.float32) * (2.0 * math.pi * unit))


def _clusters(partition: Partition, n: int) -> Tensor:
    if partition.clusters is not None:
        return torch.from_numpy(partition.clusters)
    return torch.arange(partition.n_clients) % n


def _levels(skew: str, levels: Sequence[float], partition: Partition, least: float = -math.inf) -> Tensor:
    if not len(levels) or min(levels) < least:
        raise DataError(f"The skew '{skew}' needs a list of levels{'' if least < 0 else ' >= 0'}, not {list(levels)}.")
    return torch.tensor([float(level) for level in levels])[_clusters(partition, len(levels)) % len(levels)]


def _need_images(skew: str, dataset: Dataset) -> None:
    if dataset.kind != "image":
        raise DataError(f"The skew '{skew}' needs images, but '{dataset.name}' is a {dataset.kind} data set.")


def _need_numbers(skew: str, dataset: Dataset) -> None:
    if dataset.kind == "text":
        raise DataError(f"The skew '{skew}' needs numbers, but '{dataset.name}' is a text data set.")
