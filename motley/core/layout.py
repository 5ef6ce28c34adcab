"""A model as one flat vector with a table of layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn

from motley.core.errors import DataError


@dataclass(frozen=True)
class Slot:
    """Where one parameter tensor lies in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    layer: int

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def stop(self) -> int:
        return self.start + self.size


@dataclass(frozen=True)
class Layer:
    """A module with parameters of its own; ``order`` is its place in the forward pass."""

    name: str
    start: int
    stop: int
    order: int

    @property
    def size(self) -> int:
        return self.stop - self.start


def _trained_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Modules with parameters of their own that are to be trained."""
    found = {}
    for name, one in module.named_modules():
        if any(parameter.requires_grad for parameter in one.parameters(recurse=False)):
            found[name] = one
    return found


def _slots(name: str, module: nn.Module, layer: int, begin: int, seen: set[int]) -> list[Slot]:
    """Where the parameters of one layer lie, from ``begin`` on; those tied to an earlier layer lie there."""
    found: list[Slot] = []
    for key, parameter in module.named_parameters(recurse=False):
        if id(parameter) not in seen and parameter.requires_grad:
            seen.add(id(parameter))
            start = found[-1].stop if found else begin
            found.append(Slot(f"{name}.{key}" if name else key, tuple(parameter.shape), start, layer))
    return found


@dataclass(frozen=True)
class Layout:
    """The table that turns a flat vector of ``size`` numbers into named tensors, layer by layer in forward order.

    Parameters with ``requires_grad=False`` are not in it: they stay as they are, and are neither sent nor averaged.
    """

    slots: tuple[Slot, ...]
    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, module: nn.Module, order: tuple[str, ...] | None = None) -> Layout:
        """The layout of a module; ``order`` names its layers in forward order where registration order is not it."""
        owned = _trained_layers(module)
        names = list(order) if order is not None else list(owned)
        if sorted(names) != sorted(owned):
            raise DataError(
                f"The order names the layers {', '.join(names) or 'none'}, but it must name each layer of the model "
                f"once: {', '.join(sorted(owned))}."
            )
        slots: list[Slot] = []
        layers: list[Layer] = []
        seen: set[int] = set()
        for name in names:
            begin = slots[-1].stop if slots else 0
            own = _slots(name, owned[name], len(layers), begin, seen)
            if own:
                layers.append(Layer(name, begin, own[-1].stop, len(layers)))
            slots += own
        return cls(tuple(slots), tuple(layers))

    @property
    def size(self) -> int:
        return self.layers[-1].stop if self.layers else 0

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @cached_property
    def _sizes(self) -> list[int]:
        return [slot.size for slot in self.slots]

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [slot.shape for slot in self.slots]

    @cached_property
    def layer_sizes(self) -> Tensor:
        """Number of parameters per layer: [L]."""
        return torch.tensor([layer.size for layer in self.layers])

    @cached_property
    def _layer_split(self) -> list[int]:
        return [layer.size for layer in self.layers]

    @cached_property
    def _layer_of(self) -> Tensor:
        return torch.repeat_interleave(torch.arange(self.n_layers), self.layer_sizes)

    @cached_property
    def _moved(self) -> dict[str, Tensor]:
        return {}

    def layer_of(self, device: torch.device | str | None = None) -> Tensor:
        """The layer index of every parameter: [P]."""
        if device is None or str(device) == "cpu":
            return self._layer_of
        if str(device) not in self._moved:
            self._moved[str(device)] = self._layer_of.to(device)
        return self._moved[str(device)]

    def tensors(self, flat: Tensor) -> list[Tensor]:
        """Views of one flat vector [P] in slot order (one `split`, so its gradient is one `cat`)."""
        pieces = flat.split_with_sizes(self._sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Named views of one flat vector [P]."""
        return dict(zip((slot.name for slot in self.slots), self.tensors(flat), strict=True))

    def flatten(self, named: dict[str, Tensor]) -> Tensor:
        """The flat vector of named tensors."""
        return torch.cat([named[slot.name].reshape(-1) for slot in self.slots])

    def expand(self, per_layer: Tensor) -> Tensor:
        """A number per layer [..., L] as a number per parameter [..., P]."""
        return per_layer[..., self.layer_of(per_layer.device)]

    def per_layer_sum(self, flat: Tensor) -> Tensor:
        """Sums of [..., P] over each layer: [..., L]."""
        return torch.stack([piece.sum(-1) for piece in torch.split(flat, self._layer_split, dim=-1)], -1)

    def index(self, name: str) -> int:
        """The order of the layer with this name."""
        for layer in self.layers:
            if layer.name == name:
                return layer.order
        raise KeyError(name)
