"""Tensors that stand in for those of a torch module while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from motley.core.layout import Layout


class StandIn:
    """Where a module keeps its tensors, so that others can stand in for them."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        slot_of = {id(module.get_parameter(slot.name)): i for i, slot in enumerate(layout.slots)}
        self._places: list[list[tuple[dict[str, Any], str]]] = [[] for _ in layout.slots]
        self._constants: list[tuple[dict[str, Any], str, Tensor]] = []  # what is not trained: frozen weights, buffers
        self._moved: dict[torch.device, list[Tensor]] = {}  # these on other devices
        for table, key, tensor in _tables(module):
            if id(tensor) in slot_of:  # tied weights have several places
                self._places[slot_of[id(tensor)]].append((table, key))
            else:
                self._constants.append((table, key, tensor))

    @contextmanager
    def during(self, tensors: list[Tensor]) -> Iterator[None]:
        """These tensors, in slot order, in place of the parameters."""
        saved = [places[0][0][places[0][1]] for places in self._places]
        try:
            self._put(tensors)
            if self._constants:
                self._put_constants(tensors[0].device)
            yield
        finally:
            self._put(saved)
            if self._constants:
                self._put_constants(None)

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


def _tables(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """Every place where a module keeps a tensor: the table, the key in it, and the tensor."""
    for owner in module.modules():
        for table in (owner._parameters, owner._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    yield table, key, tensor
