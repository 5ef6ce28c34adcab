"""The last linear layer of a module: its input is "the features", its outputs are the logits."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from motley.core.errors import DataError
from motley.core.layout import Layout, Slot
from motley.core.stand_in import tensor_of


class LastLayer:
    """Which layer it is, and where its weights lie in the flat vector; models without one have none (``name`` is None).

    name: given, or else the last linear layer is taken, and left alone if it turns out to be another one.
    """

    def __init__(self, module: nn.Module, layout: Layout, name: str | None) -> None:
        self.of = type(module).__name__
        self.given = name
        self.name = name or _last_linear(module)
        found = None if self.name is None else module.get_submodule(self.name)
        pieces = (found.weight, found.bias) if isinstance(found, nn.Linear) else ()
        slot_of = {id(tensor_of(module, slot.name)): slot for slot in layout.slots}
        # Its weights and biases: where they lie, or themselves where frozen.
        self.pieces: list[Slot | Tensor] = [
            slot_of[id(piece)] if id(piece) in slot_of else piece.detach() for piece in pieces if piece is not None
        ]

    def drop(self) -> None:
        """There is none after all."""
        self.name, self.pieces = None, []

    @property
    def weight(self) -> Slot | Tensor:
        if not self.pieces:
            raise DataError(f"The model {self.of} has no linear last layer, and a method asks for it.")
        return self.pieces[0]

    def place(self, layout: Layout) -> int:
        """Its place among the layers that are trained."""
        if self.name is None:
            raise DataError(
                f"This method trains or holds the last linear layer by itself, and the model {self.of} has none."
            )
        try:
            return layout.index(self.name)
        except KeyError:
            raise DataError(
                f"The last layer '{self.name}' has requires_grad=False, but this method trains or holds it by itself."
            ) from None

    def __call__(self, flat: Tensor, features: Tensor) -> Tensor:
        """Logits of given features."""
        if not self.pieces:
            _ = self.weight
        tensors = [
            flat[piece.start : piece.stop].view(piece.shape) if isinstance(piece, Slot) else piece.to(flat.device)
            for piece in self.pieces
        ]
        return nn.functional.linear(features, *tensors)


def _last_linear(module: nn.Module) -> str | None:
    found = [name for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    return str(found[-1]) if found else None


class Caught:
    """The input of a module when it is called."""

    def __init__(self, module: nn.Module) -> None:
        self.inputs: list[Tensor] = []
        self._hook = module.register_forward_pre_hook(self._catch)

    def _catch(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.inputs.append(inputs[0])

    def __enter__(self) -> Caught:
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()
