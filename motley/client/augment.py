"""Random changes of images while clients train, by name: crops and mirror images, joined by ``+``.

What happens to a sample is drawn from the client's key, the step and the sample's place in the minibatch, so every
executor sees the same images. They are drawn anew in every step; evaluation, and what parts read before and after the
steps, see the samples as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from motley.core.errors import InputError
from motley.core.keys import bits, fold_in, uniform
from motley.core.registry import Registry, parse
from motley.data.dataset import Dataset


class Change(Protocol):
    """One kind of change: of images [B, C, H, W] by a 0-d key; ``fill`` [C] is a black pixel as the network sees it."""

    def __call__(self, x: Tensor, key: Tensor, fill: Tensor) -> Tensor: ...


AUGMENTATIONS: Registry[Change] = Registry("augmentation")
"""Factories of changes; add your own with ``@AUGMENTATIONS.add()``."""

WORD = 0x61756733  # keeps these draws apart from those of the minibatches, which fold small numbers


@dataclass(frozen=True)
class Augment:
    """Several changes, one after the other."""

    changes: tuple[Change, ...]
    black: tuple[float, ...]  # a black pixel as the network sees it, per channel

    def __call__(self, x: Tensor, key: Tensor, step: Tensor | int) -> Tensor:
        """Images [B, C, H, W] as one client with this key sees them in this step."""
        key = fold_in(fold_in(key, WORD), step)
        fill = torch.tensor(self.black, device=x.device)
        for i, change in enumerate(self.changes):
            x = change(x, fold_in(key, i), fill)
        return x

    @property
    def moves(self) -> list[int] | None:
        """The changes as the kernel of a GPU takes them: the padding of a crop, 0 for a mirror; None if it cannot."""
        if any(type(change) not in (Crop, Mirror) for change in self.changes):
            return None
        return [change.padding if isinstance(change, Crop) else 0 for change in self.changes]


def make_augment(spec: str, dataset: Dataset) -> Augment | None:
    """Changes from their short form, such as ``crop(padding=4)+mirror``; none for an empty text."""
    calls = parse(spec, "augmentation") if spec.strip() else []
    if not calls:
        return None
    if dataset.kind != "image":
        raise InputError(f"augment={spec} changes images, but '{dataset.name}' holds none.")
    black = dataset.inputs(torch.zeros_like(dataset.x[:1]))[0, :, 0, 0]
    changes = tuple(AUGMENTATIONS.make(call.name, **call.arguments) for call in calls)
    return Augment(changes, tuple(black.tolist()))


@dataclass(frozen=True)
class Crop:
    """Images moved by up to ``padding`` pixels either way in both directions; black comes in at the edges."""

    padding: int

    def __call__(self, x: Tensor, key: Tensor, fill: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        drawn = bits(key, torch.arange(n, device=x.device))
        rows = _moved(drawn & 0xFFFF, self.padding, height)
        columns = _moved((drawn >> 16) & 0xFFFF, self.padding, width)
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
        place = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
        place = place.reshape(n, 1, height * width).expand(n, channels, height * width)
        found = x.reshape(n, channels, height * width).gather(2, place).reshape(x.shape)
        return torch.where(inside[:, None], found, fill.to(x.dtype)[:, None, None])


def _moved(drawn: Tensor, padding: int, size: int) -> Tensor:
    """Which row or column [B, size] comes where, with shifts -padding to padding from random bits [B]."""
    return torch.arange(size, device=drawn.device) + (drawn % (2 * padding + 1) - padding)[:, None]


@dataclass(frozen=True)
class Mirror:
    """Every image turned left to right with probability one half."""

    def __call__(self, x: Tensor, key: Tensor, fill: Tensor) -> Tensor:
        turned = bits(key, torch.arange(len(x), device=x.device)) & 1
        return torch.where(turned[:, None, None, None] == 1, x.flip(3), x)


@dataclass(frozen=True)
class Rotate:
    """Every image turned about its centre by up to ``degrees`` either way; black comes in at the corners."""

    degrees: float

    def __call__(self, x: Tensor, key: Tensor, fill: Tensor) -> Tensor:
        angle = (2 * uniform(key, (len(x),)) - 1) * math.radians(self.degrees)
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        turns = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
        black = fill.to(x.dtype)[:, None, None]
        grid = affine_grid(turns.to(x.dtype), list(x.shape), align_corners=False)
        return grid_sample(x - black, grid, align_corners=False) + black


@AUGMENTATIONS.add()
def rotate(degrees: float = 15.0) -> Change:
    """Turns each image by up to ``degrees`` either way."""
    if not 0 < degrees <= 180:
        raise InputError(f"rotate(degrees={degrees}) must turn by more than 0 and at most 180 degrees.")
    return Rotate(degrees)


@AUGMENTATIONS.add()
def crop(padding: int = 4) -> Change:
    """Moves each image by up to ``padding`` pixels in both directions, as a random crop of the padded image does."""
    if padding < 1:
        raise InputError(f"crop(padding={padding}) moves nothing; padding must be at least 1.")
    return Crop(padding)


@AUGMENTATIONS.add()
def mirror() -> Change:
    """Mirrors each image left to right with probability one half."""
    return Mirror()
