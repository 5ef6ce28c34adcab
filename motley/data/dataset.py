"""A data set in memory: training and test samples as tensors, in the smallest type that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from motley.core.errors import DataError
from motley.data.rereading import Source

T = TypeVar("T")


def tensors_to(thing: T, device: torch.device | str) -> T:
    """A dataclass with its tensors on a device; anything else as it is."""
    if not is_dataclass(thing) or isinstance(thing, type):
        return thing
    tensors = {f.name: value for f in fields(thing) if isinstance(value := getattr(thing, f.name), Tensor)}
    return replace(thing, **{name: tensor.to(device) for name, tensor in tensors.items()}) if tensors else thing


@dataclass(frozen=True)
class Scaling:
    """Turns stored inputs into what a network takes: ``(x * scale - mean) / std`` as float32, per channel or column.

    ``mean`` and ``std`` broadcast against one sample (for example [C, 1, 1] for an image, [D] for a table row).
    """

    scale: float = 1.0
    mean: Tensor | float = 0.0
    std: Tensor | float = 1.0

    @property
    def idle(self) -> bool:
        """Whether it only turns inputs into the type that a network takes."""
        numbers = (self.scale, self.mean, self.std)
        return not any(isinstance(number, Tensor) for number in numbers) and numbers == (1.0, 0.0, 1.0)

    def __call__(self, x: Tensor) -> Tensor:
        y = x.to(torch.float32)
        if self.scale != 1.0:
            y = y * self.scale
        mean = self.mean.to(x.device) if isinstance(self.mean, Tensor) else self.mean
        std = self.std.to(x.device) if isinstance(self.std, Tensor) else self.std
        return (y - mean) / std


@dataclass(frozen=True)
class Tokens(Scaling):
    """Tokens stored in a small type, as the int64 that an embedding takes."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.to(torch.int64)


@dataclass(frozen=True)
class Dataset:
    """Training and test samples. ``inputs`` gives what the network takes (float32, tokens as int64)."""

    name: str
    x: Tensor  # [N, ...] in the smallest type that holds it
    y: Tensor  # [N] int64 where targets are classes, else float32 [N] or [N, D]
    test_x: Tensor
    test_y: Tensor
    n_classes: int  # 0 where targets are not classes
    scaling: Scaling | None = None
    kind: str = "table"  # image (C, H, W), table (D,) or text (T,) tokens
    groups: Mapping[str, Tensor] = field(default_factory=dict)  # natural client ids per training sample, int64 [N]
    test_groups: Mapping[str, Tensor] = field(default_factory=dict)
    vocabulary: int = 0  # of text
    scaled: str = "own"  # by whose statistics its inputs are scaled (`motley.data.scaling`); own: as it came
    stored: Scaling | None = None  # where inputs are stored as the network takes them: how raw ones become such
    source: Source | None = None  # where training samples are read anew in every epoch: from what
    arranged: str = ""  # what was done to the shape of raw inputs: channel, last, flat

    def __post_init__(self) -> None:
        if len(self.test_x) and self.test_x.shape[1:] != self.x.shape[1:]:
            raise DataError(
                f"The test inputs of '{self.name}' have the shape {tuple(self.test_x.shape[1:])} per sample, the "
                f"training inputs {tuple(self.x.shape[1:])}; both must have the same."
            )
        self._check("training", self.x, self.y)
        self._check("test", self.test_x, self.test_y)
        if len(self.x) == 0:
            raise DataError(f"The data set '{self.name}' has no training samples.")

    def _check(self, what: str, x: Tensor, y: Tensor) -> None:
        if len(x) != len(y):
            raise DataError(f"The {what} set of '{self.name}' has {len(x)} inputs but {len(y)} labels.")
        if self.n_classes and len(y) and (int(y.min()) < 0 or int(y.max()) >= self.n_classes):
            found = int(y.min()) if int(y.min()) < 0 else int(y.max())
            raise DataError(f"Labels of '{self.name}' must lie in 0..{self.n_classes - 1}, found {found}.")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def n_outputs(self) -> int:
        """How many numbers a model gives for one sample: one per class, or one per number of the target."""
        return self.n_classes or (1 if self.y.dim() == 1 else int(self.y.shape[1]))

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    def inputs(self, x: Tensor) -> Tensor:
        """Stored inputs as the network takes them."""
        return self.scaling(x) if self.scaling is not None else x
