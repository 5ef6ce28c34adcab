"""What is done to raw inputs before a model sees them, and a module that does it by itself."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from motley.core.errors import DataError
from motley.data.dataset import Dataset, Scaling, Tokens


class Prepared(nn.Module):
    """A model that takes raw inputs: ``model((x * scale - mean) / std)``, after what is done to their shape."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, scaling: Scaling | None, arranged: str = "") -> None:
        super().__init__()
        self.model = model
        self.arranged = arranged
        self.tokens = isinstance(scaling, Tokens)
        told = scaling or Scaling()
        self.scale = float(told.scale)
        self.register_buffer("mean", torch.as_tensor(told.mean, dtype=torch.float32).clone())
        self.register_buffer("std", torch.as_tensor(told.std, dtype=torch.float32).clone())

    def forward(self, x: Tensor) -> Tensor:
        x = self._shaped(x)
        x = x.to(torch.int64) if self.tokens else (x.to(torch.float32) * self.scale - self.mean) / self.std
        out: Tensor = self.model(x)
        return out

    def _shaped(self, x: Tensor) -> Tensor:
        """Images with a channel in front, tables with a column for each number."""
        if self.arranged == "channel":
            return x.unsqueeze(1)
        if self.arranged == "last":
            return x.permute(0, 3, 1, 2)
        return x.reshape(x.shape[0], -1) if self.arranged == "flat" else x


class Preparation(NamedTuple):
    """How raw inputs become what a model takes."""

    scale: str  # by whose statistics, as `motley.data.scaling` names them
    scaling: Scaling | None  # None: inputs are taken as they are, or no single scaling leads to the held-out samples
    arranged: str = ""
    shape: tuple[int, ...] = ()  # of one input as the model takes it

    @classmethod
    def of(cls, dataset: Dataset) -> Preparation:
        return cls(dataset.scaled, dataset.scaling or dataset.stored, dataset.arranged, dataset.input_shape)

    def example(self, n: int = 2) -> Tensor:
        """Raw inputs of the right shape and type, all zero."""
        shape = self.shape
        if self.arranged == "channel":
            shape = shape[1:]
        elif self.arranged == "last":
            shape = (*shape[1:], shape[0])
        return torch.zeros(n, *shape, dtype=torch.int64 if isinstance(self.scaling, Tokens) else torch.float32)

    @property
    def told(self) -> str:
        """Whose statistics were used: own are those that the data set brings."""
        if self.scale == "own" and (self.scaling is None or self.scaling.idle):
            return "none"
        return self.scale

    def module(self, model: nn.Module) -> Prepared:
        """A model with this before it, in plain torch."""
        if self.scale == "per_client" and self.scaling is None:
            raise DataError(
                "Every client scaled its samples by its own statistics, the held-out ones too, so no single scaling "
                "belongs to this model; scale inputs by their own site's statistics and take 'result.model'."
            )
        return Prepared(model, self.scaling, self.arranged)

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it; float32 numbers come back as they were."""
        found: dict[str, Any] = {"scale": self.scale, "arranged": self.arranged, "shape": list(self.shape)}
        found["scaling"] = None
        if self.scaling is not None:
            numbers = {key: getattr(self.scaling, key) for key in ("scale", "mean", "std")}
            told = {key: one.tolist() if isinstance(one, Tensor) else one for key, one in numbers.items()}
            found["scaling"] = {**told, "tokens": isinstance(self.scaling, Tokens)}
        return found

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Preparation:
        told, shape = content["scaling"], tuple(content.get("shape", ()))
        if told is None:
            return cls(content["scale"], None, content["arranged"], shape)
        kind = Tokens if told["tokens"] else Scaling
        mean, std = (torch.tensor(n) if isinstance(n, list) else float(n) for n in (told["mean"], told["std"]))
        return cls(content["scale"], kind(float(told["scale"]), mean, std), content["arranged"], shape)
