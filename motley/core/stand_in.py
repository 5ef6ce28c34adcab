"""Tensors that stand in for those of a torch module while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from motley.core.errors import DataError
from motley.core.layout import Layout


class StandIn:
    """Where a module keeps its tensors, so that others can stand in for them."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        slot_of = {id(tensor_of(module, slot.name)): i for i, slot in enumerate(layout.slots)}
        self._places: list[list[tuple[dict[str, Any], str]]] = [[] for _ in layout.slots]
        self._constants: list[tuple[dict[str, Any], str, Tensor]] = []  # what is not trained: frozen weights, buffers
        self._moved: dict[torch.device, list[Tensor]] = {}  # these on other devices
        self._hidden: list[tuple[dict[str, Any], str, Tensor]] = []  # what nothing asks for, and torch would change
        for table, key, tensor in _tables(module):
            if id(tensor) in slot_of:  # tied weights have several places
                self._places[slot_of[id(tensor)]].append((table, key))
            elif key == "num_batches_tracked":
                self._hidden.append((table, key, tensor))
            else:
                self._constants.append((table, key, tensor))

    def during(self, tensors: list[Tensor]) -> During:
        """A block in which these tensors, in slot order, are in place of the parameters."""
        return During(self, tensors)

    def enter(self, tensors: list[Tensor]) -> list[Any]:
        """Puts them in place, and gives what was there."""
        saved = [places[0][0][places[0][1]] for places in self._places]
        try:
            self._put(tensors)
            for owner, key, _ in self._hidden:
                owner[key] = None
            if self._constants:
                self._put_constants(tensors[0].device)
        except BaseException:
            self.leave(saved)
            raise
        return saved

    def leave(self, saved: list[Any]) -> None:
        """Puts back what was there."""
        self._put(saved)
        if self._constants:
            self._put_constants(None)
        for owner, key, tensor in self._hidden:
            owner[key] = tensor

    @contextmanager
    def refusing_changes(self, module: nn.Module) -> Iterator[None]:
        """Within `during`: a module that changes one of its buffers is refused; the next pass would not know of it."""
        before = [(owner[key], owner[key]._version) for owner, key, _ in self._constants]
        yield
        for (owner, key, tensor), (held, version) in zip(self._constants, before, strict=True):
            if owner[key] is not held or held._version != version:
                name = next((name for name, buffer in module.named_buffers() if buffer is tensor), key)
                raise DataError(
                    f"The model {type(module).__name__} changes its buffer '{name}' in a forward pass; only running "
                    "statistics of batch norm can be trained so: make it a parameter, or leave it as it is."
                )

    def _put(self, tensors: list[Any]) -> None:
        for places, tensor in zip(self._places, tensors, strict=True):
            for owner, key in places:
                owner[key] = tensor

    def _put_constants(self, device: torch.device | None) -> None:
        """Frozen weights and buffers where the forward pass runs; None: as the module has them."""
        if device is not None and device not in self._moved:
            self._moved[device] = [tensor.detach().to(device) for _, _, tensor in self._constants]
        for i, (owner, key, tensor) in enumerate(self._constants):
            owner[key] = tensor if device is None else self._moved[device][i]


class During:
    """`StandIn.during`; a class of its own, since one is entered for every step."""

    __slots__ = ("_saved", "_stand_in", "_tensors")

    def __init__(self, stand_in: StandIn, tensors: list[Tensor]) -> None:
        self._stand_in, self._tensors = stand_in, tensors
        self._saved: list[Any] = []

    def __enter__(self) -> None:
        self._saved = self._stand_in.enter(self._tensors)

    def __exit__(self, *_: object) -> None:
        self._stand_in.leave(self._saved)


def tensor_of(module: nn.Module, name: str) -> Tensor:
    """A parameter or buffer of a module by its name."""
    owner, _, key = name.rpartition(".")
    found: Tensor = getattr(module.get_submodule(owner), key)
    return found


def _tables(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """Every place where a module keeps a tensor: the table, the key in it, and the tensor."""
    for owner in module.modules():
        for table in (owner._parameters, owner._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    yield table, key, tensor
