"""A model as one flat vector with a table of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from motley.core.errors import DataError


@dataclass(frozen=True)
class Slot:
    """Where one tensor of a module lies in the flat vector: a parameter, or a running statistic of batch norm."""

    name: str
    shape: tuple[int, ...]
    start: int
    layer: int
    by_gradient: bool = True  # False: a running statistic, which every forward pass of training gives anew

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


STATISTICS = ("running_mean", "running_var")


def follows_statistics(module: nn.Module) -> bool:
    """Whether a module is batch norm whose running statistics training changes: not one that is frozen."""
    if not isinstance(module, _BatchNorm) or not module.training or module.running_mean is None:
        return False
    own = list(module.parameters(recurse=False))
    return not own or any(parameter.requires_grad for parameter in own)


def _trained_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Modules with parameters or running statistics of their own that training changes."""
    found = {}
    for name, one in module.named_modules():
        if any(parameter.requires_grad for parameter in one.parameters(recurse=False)) or follows_statistics(one):
            found[name] = one
    return found


def _slots(name: str, module: nn.Module, layer: int, begin: int, seen: set[int]) -> list[Slot]:
    """Where the tensors of one layer lie, from ``begin`` on; those tied to an earlier layer lie there."""
    found: list[Slot] = []
    own: list[tuple[str, Tensor, bool]] = [
        (key, one, True) for key, one in module.named_parameters(recurse=False) if one.requires_grad
    ]
    if follows_statistics(module):
        own += [(key, module.get_buffer(key), False) for key in STATISTICS]
    for key, tensor, by_gradient in own:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            start = found[-1].stop if found else begin
            found.append(Slot(f"{name}.{key}" if name else key, tuple(tensor.shape), start, layer, by_gradient))
    return found


@dataclass(frozen=True)
class Layout:
    """The table that turns a flat vector of ``size`` numbers into named tensors, layer by layer in forward order.

    Parameters with ``requires_grad=False`` are not in it: they stay as they are, and are neither sent nor averaged.
    Running statistics of batch norm are, beside the weights of their layer: they are sent and averaged as these are.
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
        made = cls(tuple(slots), tuple(layers))
        if made.statistics:
            _ = made._by_gradient  # made here, not first while a step is traced
        return made

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
    def statistics(self) -> tuple[Slot, ...]:
        """The running statistics among them."""
        return tuple(slot for slot in self.slots if not slot.by_gradient)

    def with_statistics(self, flat: Tensor, source: Tensor) -> Tensor:
        """A flat vector [..., P] with the running statistics of another [..., P]."""
        if not self.statistics:
            return flat
        return torch.where(self._by_gradient.to(flat.device), flat, source)

    @cached_property
    def _by_gradient(self) -> Tensor:
        """Which numbers of the flat vector are parameters, not running statistics: [P]."""
        kinds = torch.tensor([slot.by_gradient for slot in self.slots])
        return torch.repeat_interleave(kinds, torch.tensor(self._sizes))

    def put_statistics(self, flat: Tensor, fresh: Sequence[Tensor], where: Tensor | None = None) -> None:
        """Writes running statistics [..., C], in slot order, into a flat vector [..., P]; ``where`` [...] is not 0."""
        for slot, tensor in zip(self.statistics, fresh, strict=True):
            place = flat[..., slot.start : slot.stop]
            values = tensor.reshape(place.shape)
            place.copy_(values if where is None else torch.where(where[..., None], values, place))

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


def with_sound_variances(layout: Layout, flat: Tensor) -> Tensor:
    """A flat vector [P] whose running variances are not below 0, as noise and extrapolation may leave them."""
    variances = [slot for slot in layout.statistics if slot.name.endswith("running_var")]
    if not variances:
        return flat
    sound = flat.clone()
    for slot in variances:
        sound[slot.start : slot.stop].clamp_min_(0.0)
    return sound
