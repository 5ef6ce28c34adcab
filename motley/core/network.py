"""A torch module as pure functions of a flat parameter vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from motley.core.errors import DataError
from motley.core.layout import Layout, Slot
from motley.core.stand_in import StandIn
from motley.core.types import Output


class Network:
    """``net(flat, x)`` runs any `nn.Module` with the parameters of a flat vector; it is pure, so it can be vmapped.

    head: name of the last linear layer; its input is "the features". Found by itself where not given.
    classifier: names of the layers that make up the classifier when only that is trained (default: the head).
    order: names of the layers in forward order, where it differs from the order of registration.
    A module may carry them itself, as attributes ``head_name``, ``classifier`` and ``order``. A module with a method
    ``features(x)`` that gives the head's input is called in two halves, which saves a hook per call. A submodule
    ``projection``, on the same features as the head, is a projection head: trained, but no part of the logits.
    """

    made_from: dict[str, Any] | None = None
    """The name, the shapes and the classes from which it can be made again; None: the module was given."""

    def __init__(
        self,
        module: nn.Module,
        *,
        head: str | None = None,
        classifier: tuple[str, ...] | None = None,
        order: tuple[str, ...] | None = None,
    ) -> None:
        self.module = module
        _refuse_kinds(module)
        self.layout = Layout.of(module, order or _names(module, "order"))
        if not self.layout.layers:
            raise DataError(
                f"The model {type(module).__name__} has no parameters to train"
                + ("; all of them have requires_grad=False." if any(True for _ in module.parameters()) else ".")
            )
        _refuse_running_statistics(module)
        _refuse_dropout(module)
        self.head = head or getattr(module, "head_name", None) or _last_linear(module)
        self.classifier_layers = self._places_of(classifier or _names(module, "classifier") or (self.head,))
        self._wire()

    def _places_of(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """The places of the classifier's layers that are trained."""
        known = {layer.name for layer in self.layout.layers}
        for name in (*names, self.head):
            if name not in dict(self.module.named_modules()):
                raise DataError(f"The model has no layer '{name}'; its layers are {', '.join(sorted(known))}.")
        return tuple(sorted(self.layout.index(name) for name in names if name in known))

    def _wire(self) -> None:
        """Finds where the module keeps its tensors, and its last layer among them."""
        slot_of = {id(self.module.get_parameter(slot.name)): i for i, slot in enumerate(self.layout.slots)}
        self._stand_in = StandIn(self.module, self.layout)
        self._head_module = self.module.get_submodule(self.head)
        pieces = (getattr(self._head_module, key, None) for key in ("weight", "bias"))
        # Of the last layer's weights and biases: where they lie in the flat vector, or themselves where frozen.
        self._head_pieces: list[Slot | Tensor] = [
            self.layout.slots[slot_of[id(piece)]] if id(piece) in slot_of else piece.detach()
            for piece in pieces
            if isinstance(piece, Tensor)
        ]
        features = getattr(self.module, "features", None)
        self._split = callable(features) and not isinstance(features, nn.Module)

    @property
    def head_is_trained(self) -> bool:
        return any(layer.name == self.head for layer in self.layout.layers)

    @property
    def head_layer(self) -> int:
        """The place of the last layer among those that are trained."""
        try:
            return self.layout.index(self.head)
        except KeyError:
            raise DataError(
                f"The last layer '{self.head}' has requires_grad=False, but this method trains or holds it by itself."
            ) from None

    def __getstate__(self) -> dict[str, Any]:
        hidden = {"_stand_in", "_head_module", "_head_pieces"}
        return {key: value for key, value in self.__dict__.items() if key not in hidden}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._wire()

    @property
    def size(self) -> int:
        return self.layout.size

    @property
    def n_layers(self) -> int:
        return self.layout.n_layers

    @property
    def n_features(self) -> int:
        return int(self._head_pieces[0].shape[-1])

    @property
    def n_classes(self) -> int:
        return int(self._head_pieces[0].shape[0])

    def initial(self) -> Tensor:
        """The module's own weights as a flat vector [P]."""
        named = {slot.name: self.module.get_parameter(slot.name).detach() for slot in self.layout.slots}
        return self.layout.flatten(named).clone()

    def __call__(self, flat: Tensor, x: Tensor) -> Output:
        """Features and logits of a batch."""
        return self.forward(self.layout.tensors(flat), x)

    def forward(self, tensors: list[Tensor], x: Tensor) -> Output:
        """As calling, from tensors in slot order: they stand in for the module's parameters during the call."""
        with self._stand_in.during(tensors):
            return self._run(x)

    def piece(self, tensors: list[Tensor], name: str, *inputs: Tensor) -> Tensor:
        """One method of the module alone, by name, with these tensors in place of its parameters."""
        with self._stand_in.during(tensors):
            found: Tensor = getattr(self.module, name)(*inputs)
            return found

    def _run(self, x: Tensor) -> Output:
        if self._split:
            features = self.module.features(x)  # type: ignore[operator]
            return Output(features, self._head_module(features))
        caught: list[Tensor] = []
        hook = self._head_module.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
        try:
            logits = self.module(x)
        finally:
            hook.remove()
        if not isinstance(logits, Tensor):
            raise DataError(
                f"The model {type(self.module).__name__} returns a {type(logits).__name__}; it must return one tensor, "
                "a row of outputs per sample."
            )
        if not caught:
            raise DataError(
                f"The model {type(self.module).__name__} does not use its layer '{self.head}'; "
                "name its last layer: Network(module, head='...')."
            )
        return Output(caught[-1], logits)

    def features(self, flat: Tensor, x: Tensor) -> Tensor:
        """The input of the last linear layer."""
        return self(flat, x).features

    @property
    def projects(self) -> bool:
        """Whether the module has a projection head."""
        return isinstance(getattr(self.module, "projection", None), nn.Module)

    def project(self, flat: Tensor, features: Tensor) -> Tensor:
        """The projection head alone: what it makes of given features."""
        with self._stand_in.during(self.layout.tensors(flat)):
            projected: Tensor = self.module.projection(features)  # type: ignore[operator]
            return projected

    def classify(self, flat: Tensor, features: Tensor) -> Tensor:
        """The last linear layer alone: logits of given features."""
        pieces = [
            flat[piece.start : piece.stop].view(piece.shape) if isinstance(piece, Slot) else piece.to(flat.device)
            for piece in self._head_pieces
        ]
        return nn.functional.linear(features, *pieces)


def _names(module: nn.Module, attribute: str) -> tuple[str, ...] | None:
    """Layer names that a module carries; an attribute of that name that is something else is not meant for us."""
    found = getattr(module, attribute, None)
    good = isinstance(found, list | tuple) and all(isinstance(name, str) for name in found)
    return tuple(found) if good and found else None


def _last_linear(module: nn.Module) -> str:
    found = [name for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    if not found:
        raise DataError(
            f"The model {type(module).__name__} has no nn.Linear layer; "
            "name its last layer: Network(module, head='...')."
        )
    return str(found[-1])


def _refuse_kinds(module: nn.Module) -> None:
    """Weights must have a shape, and be float32 as everything that is trained."""
    for name, parameter in module.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise DataError(
                f"The parameter '{name}' of the model {type(module).__name__} is lazy: it has no shape yet; call the "
                "model once with a few samples, model(x[:2]), or say how many inputs the layer has."
            )
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise DataError(
                f"The parameter '{name}' of the model {type(module).__name__} is {kind}; models are trained in "
                "float32: give model.float() (and precision='bf16' or 'tf32' for quicker steps on a GPU)."
            )


def _refuse_running_statistics(module: nn.Module) -> None:
    for name, m in module.named_modules():
        if getattr(m, "track_running_stats", False) and getattr(m, "running_mean", None) is not None:
            raise DataError(
                f"Layer '{name}' keeps running statistics, which cannot be trained client by client; "
                "use nn.GroupNorm, or track_running_stats=False."
            )


def _refuse_dropout(module: nn.Module) -> None:
    for name, m in module.named_modules():
        share = m.p if isinstance(m, nn.modules.dropout._DropoutNd) else getattr(m, "dropout", 0.0)
        if m.training and isinstance(share, float) and share > 0:
            raise DataError(
                f"Layer '{name}' drops units at random from a global generator, which no other engine can repeat; "
                "remove the dropout, or switch it off with module.eval()."
            )
