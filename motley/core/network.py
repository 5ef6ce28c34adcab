"""A torch module as pure functions of a flat parameter vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter

from motley.core.errors import DataError
from motley.core.in_training import Pass
from motley.core.last_layer import LastLayer
from motley.core.layout import Layout
from motley.core.running import Running
from motley.core.stand_in import tensor_of
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
        _refuse_norms(module)
        _refuse_inner_dropout(module)
        named = head or getattr(module, "head_name", None)
        chosen = classifier or _names(module, "classifier")
        _check_names(module, self.layout, [*(chosen or ()), *([named] if named else [])])
        self.last = LastLayer(module, self.layout, named)
        self.classify = self.last  # ``classify(flat, features)``: the last linear layer alone, logits of given features
        self._classifier = chosen
        self._running = Running(module, self.layout, self.last)

    @property
    def head(self) -> str | None:
        """The name of the last linear layer; None where there is none."""
        return self.last.name

    @property
    def offers(self) -> frozenset[str]:
        """What parts may count on: features, which are the input of a linear last layer."""
        return frozenset({"features"} if self.last.pieces else ())

    @property
    def classifier_layers(self) -> tuple[int, ...]:
        """The places of the classifier's layers that are trained."""
        names = self._classifier or ((self.head,) if self.head is not None else ())
        known = {layer.name: layer.order for layer in self.layout.layers}
        return tuple(sorted(known[name] for name in names if name in known))

    @property
    def head_is_trained(self) -> bool:
        return any(layer.name == self.head for layer in self.layout.layers)

    @property
    def head_layer(self) -> int:
        """The place of the last layer among those that are trained."""
        return self.last.place(self.layout)

    @property
    def size(self) -> int:
        return self.layout.size

    @property
    def n_layers(self) -> int:
        return self.layout.n_layers

    @property
    def n_features(self) -> int:
        return int(self.last.weight.shape[-1])

    @property
    def n_classes(self) -> int:
        return int(self.last.weight.shape[0])

    def initial(self) -> Tensor:
        """The module's own weights as a flat vector [P]."""
        named = {slot.name: tensor_of(self.module, slot.name).detach() for slot in self.layout.slots}
        return self.layout.flatten(named).clone()

    def __call__(self, flat: Tensor, x: Tensor) -> Output:
        """Features and logits of a batch, as the model is judged: nothing is dropped, running statistics are used."""
        return self.forward(self.layout.tensors(flat), x)

    def forward(self, tensors: list[Tensor], x: Tensor) -> Output:
        """As calling, from tensors in slot order: they stand in for the module's parameters during the call."""
        return self._running.judged(tensors, x)

    def train(self, tensors: list[Tensor], x: Tensor, one: Pass) -> tuple[Output, tuple[Tensor, ...]]:
        """A pass of training: draws come from its key; also the running statistics after it, in slot order."""
        return self._running.trained(tensors, x, one)

    def acts(self, x: Tensor) -> bool:
        """Whether a pass of training does more than compute: the module draws, or norms by what is in the batch.

        x: samples, of which a few are looked at when it is first asked.
        """
        if self._running.acts is None:
            self.look(x[:2])
        return bool(self._running.acts)

    def look(self, x: Tensor) -> Output:
        """One pass over a few samples, to learn what the module does; one that cannot be trained is refused."""
        return self._running.look(self.layout.tensors(self.initial()), x)

    def piece(self, tensors: list[Tensor], name: str, *inputs: Tensor) -> Tensor:
        """One method of the module alone, by name, with these tensors in place of its parameters."""
        return self._running.piece(tensors, name, *inputs)

    def features(self, flat: Tensor, x: Tensor) -> Tensor:
        """The input of the last linear layer."""
        return self(flat, x).features

    @property
    def projects(self) -> bool:
        """Whether the module has a projection head."""
        return isinstance(getattr(self.module, "projection", None), nn.Module)

    def project(self, flat: Tensor, features: Tensor) -> Tensor:
        """The projection head alone: what it makes of given features."""
        return self.piece(self.layout.tensors(flat), "projection", features)


def _check_names(module: nn.Module, layout: Layout, names: list[str]) -> None:
    """Refuses names that no layer has."""
    for name in names:
        if name not in dict(module.named_modules()):
            known = sorted(layer.name for layer in layout.layers)
            raise DataError(f"The model has no layer '{name}'; its layers are {', '.join(known)}.")


def _names(module: nn.Module, attribute: str) -> tuple[str, ...] | None:
    """Layer names that a module carries; an attribute of that name that is something else is not meant for us."""
    found = getattr(module, attribute, None)
    good = isinstance(found, list | tuple) and all(isinstance(name, str) for name in found)
    return tuple(found) if good and found else None


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


def _refuse_norms(module: nn.Module) -> None:
    """Batch norm's running statistics are part of the model; those of others, or over all of the past, cannot be."""
    for name, m in module.named_modules():
        if not getattr(m, "track_running_stats", False) or not m.training:
            continue
        if not isinstance(m, _BatchNorm) or isinstance(m, nn.SyncBatchNorm):
            raise DataError(
                f"Layer '{name}' ({type(m).__name__}) keeps running statistics in a way that cannot be trained client "
                "by client; use nn.BatchNorm1d, 2d or 3d, nn.GroupNorm, or track_running_stats=False."
            )
        if m.momentum is None:
            raise DataError(
                f"Layer '{name}' averages its statistics over all of its past (momentum=None), which has no meaning "
                "over clients; give it a momentum, such as 0.1."
            )


def _refuse_inner_dropout(module: nn.Module) -> None:
    for name, m in module.named_modules():
        if isinstance(m, nn.RNNBase) and m.training and m.dropout > 0 and m.num_layers > 1:
            raise DataError(
                f"Layer '{name}' ({type(m).__name__}) drops units inside torch's kernel, which no other engine can "
                "repeat; stack layers with nn.Dropout in between, or give it dropout=0."
            )
