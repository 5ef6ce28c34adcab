"""Generators with their critics as one model: WGAN-GP for images (Gulrajani et al. 2017), and a small one for digits.

The generator's weights come first in the flat vector, the critic's after them. Layers are torch's own: their gradients
have gradients, which the penalty needs and kernels for many clients have not.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from motley.core.errors import DataError
from motley.core.keys import Key, normal
from motley.nets.models import image, model, numbers, widths

PROBES = 256  # noise by which a generator is looked at between rounds


class Generator(nn.Module):
    """From noise [B, Z] to samples between ``low`` and ``high``: ``middle + reach * tanh``."""

    def __init__(self, body: nn.Module, shape: tuple[int, ...], low: float, high: float) -> None:
        super().__init__()
        self.body, self.shape = body, shape
        self.middle, self.reach = (high + low) / 2, (high - low) / 2

    def forward(self, z: Tensor) -> Tensor:
        made: Tensor = self.middle + self.reach * torch.tanh(self.body(z).view(len(z), *self.shape))
        return made


class GAN(nn.Module):
    """A generator and a critic; where it is conditional both are told the class, as a row of zeros and a one."""

    head_name = "critic.head"
    classifier = ("critic.head",)

    probe: Tensor

    def __init__(self, generator: Generator, critic: nn.Module, latent: int, classes: int) -> None:
        super().__init__()
        self.latent, self.classes = latent, classes  # classes: 0 where it is not conditional
        self.generator, self.critic = generator, critic
        self.register_buffer("probe", normal(Key.root(0).fold("probe").tensor(), (PROBES, latent)))

    def generate(self, z: Tensor, told: Tensor) -> Tensor:
        """Samples from noise [B, Z], and classes [B, C] where they are told (otherwise [B, 0])."""
        made: Tensor = self.generator(torch.cat([z, told], 1))
        return made

    def judge(self, x: Tensor, told: Tensor) -> Tensor:
        """The critic's value of samples: [B, 1]."""
        value: Tensor = self.critic(_with_classes(x, told) if self.classes else x)
        return value

    def forward(self, x: Tensor) -> Tensor:
        """The critic's values of samples, of as many generated ones, and between both: [B, 3].

        No class is told.
        """
        blank = x.new_zeros(len(x), self.classes)
        fake = self.generate(self.probe[torch.arange(len(x), device=x.device) % PROBES], blank)
        return torch.cat([self.judge(some, blank) for some in (x, fake, (x + fake) / 2)], 1)


def _with_classes(x: Tensor, told: Tensor) -> Tensor:
    """Samples with the class beside them: as further numbers of a row, or as channels of one number each."""
    if x.dim() == 2:
        return torch.cat([x, told], 1)
    return torch.cat([x, told[:, :, None, None].expand(*told.shape, *x.shape[2:])], 1)


class Critic(nn.Module):
    """A body, and a linear layer on top of what it gives."""

    def __init__(self, body: nn.Module, features: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(features, 1)

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor = self.head(self.body(x).flatten(1))
        return value


class FlatWithClasses(nn.Module):
    """Images in a row, each class channel as one number."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.channels = shape[0] if len(shape) == 3 else 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.channels or x.shape[1] == self.channels:
            return x.flatten(1)
        return torch.cat([x[:, : self.channels].flatten(1), x[:, self.channels :, 0, 0]], 1)


def _dense(sizes: list[int], last: bool) -> list[nn.Module]:
    """Linear layers with leaky ReLU after each, but the last where ``last`` is false."""
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(before, after))
        if last or i < len(sizes) - 2:
            layers.append(nn.LeakyReLU(0.2))
    return layers


@model
def gan_mlp(
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int = 0,
    hidden: list[int] | tuple[int, ...] = (128, 128),
    latent: int = 32,
    conditional: bool = False,
    low: float = -1.0,
    high: float = 1.0,
) -> GAN:
    """Generator and critic of linear layers with leaky ReLU, for digits and other small samples."""
    size, told = numbers("gan_mlp", shape, vocabulary), classes if conditional else 0
    inner = list(widths("gan_mlp", "hidden", hidden, at_least=1))
    generator = nn.Sequential(*_dense([latent + told, *inner, size], last=False))
    critic = nn.Sequential(FlatWithClasses(shape), *_dense([size + told, *inner[::-1]], last=True))
    return GAN(Generator(generator, shape, low, high), Critic(critic, inner[0]), latent, told)


class Upwards(nn.Module):
    """A linear layer to a small image, and blocks that double its sides."""

    def __init__(self, inputs: int, width: int, side: int, channels: int, cut: bool) -> None:
        super().__init__()
        self.width, self.side, self.cut = width, side, cut
        self.first = nn.Linear(inputs, 4 * width * side * side)
        self.norm1 = nn.GroupNorm(8, 4 * width)
        self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 4, stride=2, padding=1)
        self.norm2 = nn.GroupNorm(8, 2 * width)
        self.up2 = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)
        self.norm3 = nn.GroupNorm(8, width)
        self.up3 = nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        h = self.norm1(self.first(z).view(len(z), 4 * self.width, self.side, self.side)).relu()
        h = self.norm2(self.up1(h)).relu()
        if self.cut:  # 8 x 8 to 7 x 7, of which 28 x 28 comes
            h = h[:, :, :7, :7]
        found: Tensor = self.up3(self.norm3(self.up2(h)).relu())
        return found


def _downwards(channels: int, width: int, norm: str) -> nn.Sequential:
    """Three convolutions that halve the sides; ``norm``: none, as in the original, or group."""

    def block(before: int, after: int) -> list[nn.Module]:
        between = [nn.GroupNorm(8, after)] if norm == "group" and before != channels else []
        return [nn.Conv2d(before, after, 5, stride=2, padding=2), *between, nn.LeakyReLU(0.2)]

    return nn.Sequential(*block(channels, width), *block(width, 2 * width), *block(2 * width, 4 * width))


@model
def gan_conv(
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int = 0,
    width: int = 64,
    latent: int = 128,
    norm: str = "none",
    conditional: bool = False,
    low: float = -1.0,
    high: float = 1.0,
) -> GAN:
    """WGAN-GP for images of 28 x 28 or 32 x 32 (width 64), with group norm in the generator in place of batch norm.

    norm: of the critic, ``none`` or ``group``.
    """
    channels, rows, columns = image("gan_conv", shape)
    if (rows, columns) not in ((28, 28), (32, 32)) or norm not in ("none", "group") or width % 8:
        raise DataError(
            f"gan_conv makes images of 28 x 28 or 32 x 32 with norm=none or group and a width that 8 divides, not "
            f"{rows} x {columns} with norm={norm} and width={width}; take gan_mlp for other sizes."
        )
    told = classes if conditional else 0
    body = Upwards(latent + told, width, 4, channels, cut=rows == 28)
    critic = Critic(_downwards(channels + told, width, norm), 4 * width * 16)
    assert prod(shape) == channels * rows * columns
    return GAN(Generator(body, shape, low, high), critic, latent, told)
