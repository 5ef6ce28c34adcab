"""Residual networks with group norm, which keeps no running statistics, or with batch norm, which does."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from motley.core.errors import DataError
from motley.nets.conv import Conv2d, max_pool
from motley.nets.models import Split, image, model

Norm = Callable[[int], nn.Module]
"""The norm of so many channels."""


class Unit(NamedTuple):
    """One step of a residual network: its width in multiples of the first one's, and what it does."""

    width: int
    residual: bool = False  # two convolutions with a shortcut, otherwise one convolution
    stride: int = 1  # of the first convolution
    pool: bool = False  # 2 x 2 pooling at the end


_UNITS: dict[int, tuple[Unit, ...]] = {
    9: (Unit(1), Unit(2, pool=True), Unit(2, True), Unit(4, pool=True), Unit(8, pool=True), Unit(8, True)),
    18: (Unit(1), *(Unit(w, True, s) for w, s in zip((1, 1, 2, 2, 4, 4, 8, 8), (1, 1, 2, 1, 2, 1, 2, 1), strict=True))),
}


class ConvUnit(nn.Module):
    """Convolution 3x3, norm, ReLU, perhaps pooling."""

    def __init__(self, n_inputs: int, n_outputs: int, pool: bool, norm: Norm) -> None:
        super().__init__()
        self.conv = Conv2d(n_inputs, n_outputs, 3, padding=1, bias=False)
        self.norm = norm(n_outputs)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv(x)).relu()
        return max_pool(y) if self.pool else y


class ResidualUnit(nn.Module):
    """Two convolutions 3x3 with a norm each, added to the input (through a 1x1 convolution where shapes differ)."""

    def __init__(self, n_inputs: int, n_outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = Conv2d(n_inputs, n_outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm(n_outputs)
        self.conv2 = Conv2d(n_outputs, n_outputs, 3, padding=1, bias=False)
        self.norm2 = norm(n_outputs)
        changes = stride != 1 or n_inputs != n_outputs
        self.shortcut = Conv2d(n_inputs, n_outputs, 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (y + (x if self.shortcut is None else self.shortcut(x))).relu()


def group_norm(channels: int) -> nn.GroupNorm:
    """At most 32 groups, of at least two channels each: one alone on one pixel would always come out as zero."""
    groups = next(n for n in range(min(32, max(channels // 2, 1)), 0, -1) if channels % n == 0)
    return nn.GroupNorm(groups, channels)


class ResNet(Split):
    """Layers ``unit1, unit2, ..., head``; the features are means over the image."""

    def __init__(self, channels: int, classes: int, units: tuple[Unit, ...], width: int, norm: Norm) -> None:
        super().__init__()
        self.depth = len(units)
        for i, unit in enumerate(units, 1):
            after = unit.width * width
            made: nn.Module = (
                ResidualUnit(channels, after, unit.stride, norm)
                if unit.residual
                else ConvUnit(channels, after, unit.pool, norm)
            )
            self.add_module(f"unit{i}", made)
            channels = after
        self.head = nn.Linear(channels, classes)

    def features(self, x: Tensor) -> Tensor:
        for i in range(1, self.depth + 1):
            x = self.get_submodule(f"unit{i}")(x)
        return x.mean((-2, -1))


@model
def resnet_gn(shape: tuple[int, ...], classes: int, vocabulary: int = 0, depth: int = 9, width: int = 64) -> ResNet:
    """Residual network with group norm: depth 9 (small, three poolings) or 18 (GANDALF's ResNet-18, 3x3 stem)."""
    return _resnet("resnet_gn", shape, classes, depth, width, group_norm)


@model
def resnet_bn(shape: tuple[int, ...], classes: int, vocabulary: int = 0, depth: int = 18, width: int = 64) -> ResNet:
    """Residual network with batch norm, whose running statistics are averaged or private: depth 9 or 18."""
    return _resnet("resnet_bn", shape, classes, depth, width, nn.BatchNorm2d)


def _resnet(name: str, shape: tuple[int, ...], classes: int, depth: int, width: int, norm: Norm) -> ResNet:
    channels, height, breadth = image(name, shape)
    if depth not in _UNITS:
        raise DataError(f"The model '{name}' has no depth {depth}; choose one of {', '.join(map(str, _UNITS))}.")
    if width < 1:
        raise DataError(f"The model '{name}' was given width={width}; it takes a positive whole number.")
    if min(height, breadth) < 16:
        raise DataError(
            f"The images are too small for the model '{name}': {height} x {breadth} pixels, at least 16 x 16 are "
            "needed; use larger images or mlp."
        )
    return ResNet(channels, classes, _UNITS[depth], width, norm)
