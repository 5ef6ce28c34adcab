"""A torch module while it runs with the weights of others: in training, or as it is judged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from motley.core.errors import DataError
from motley.core.in_training import Pass, Watched
from motley.core.last_layer import Caught, LastLayer
from motley.core.layout import Layout
from motley.core.stand_in import StandIn
from motley.core.types import Output

LOOKED_UP = {"_stand_in", "_in_training", "_layer", "_halves"}
"""What is found in a module, and found again where it comes from another process."""


class Running:
    """Runs a module with tensors that stand in for its own, and gives features and logits.

    A module that draws at random or norms by what is in a batch is watched in training (`motley.core.in_training`);
    whether it does is learned from one pass over a few samples.
    """

    def __init__(self, module: nn.Module, layout: Layout, last: LastLayer) -> None:
        self.module, self.layout, self.last = module, layout, last
        self.acts: bool | None = None  # whether it draws, or norms by what is in a batch; None: not looked yet
        self._wire()

    def _wire(self) -> None:
        """Finds where the module keeps its tensors."""
        self._stand_in = StandIn(self.module, self.layout)
        self._layer = None if self.last.name is None else self.module.get_submodule(self.last.name)
        self._halves = bool(self.last.pieces) and _in_halves(self.module)
        self._in_training = [one for one in self.module.modules() if one.training]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in LOOKED_UP}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._wire()

    # ------------------------------------------------------------------ passes
    def judged(self, tensors: list[Tensor], x: Tensor) -> Output:
        """Nothing is dropped, running statistics are used; attention by the same operations as in training."""
        if self.layout.statistics:  # which have no gradient
            slots = self.layout.slots
            tensors = [one if slot.by_gradient else one.detach() for one, slot in zip(tensors, slots, strict=True)]
        with self._stand_in.during(tensors), self._as_judged():
            return self._run(x)

    def trained(self, tensors: list[Tensor], x: Tensor, one: Pass) -> tuple[Output, tuple[Tensor, ...]]:
        """Draws come from the key of the pass; also the running statistics after it, in slot order."""
        if self.acts is False:
            with self._stand_in.during(tensors):
                return self._run(x), ()
        statistics, watched = self._watched(tensors, x, one)
        with self._stand_in.during(tensors), watched:
            out = self._run(x)
        return out, tuple(watched.found.get(i, tensor.detach()) for i, tensor in statistics.items())

    def piece(self, tensors: list[Tensor], name: str, *inputs: Tensor) -> Tensor:
        """One method of the module alone."""
        with self._stand_in.during(tensors):
            found: Tensor = getattr(self.module, name)(*inputs)
            return found

    # ------------------------------------------------------------------ what it does
    def look(self, tensors: list[Tensor], x: Tensor) -> Output:
        """One pass over a few samples, to learn what the module does; one that cannot be trained is refused."""
        zero = torch.zeros((), dtype=torch.int64)
        _, watched = self._watched(tensors, x, Pass(zero, zero))
        with torch.no_grad(), self._stand_in.during(tensors), self._stand_in.refusing_changes(self.module), watched:
            out = self._run(x)
        self.acts = watched.seen > 0
        return self.judged(tensors, x) if self.acts else out

    def _watched(self, tensors: list[Tensor], x: Tensor, one: Pass) -> tuple[dict[int, Tensor], Watched]:
        statistics = {i: tensors[i] for i, slot in enumerate(self.layout.slots) if not slot.by_gradient}
        return statistics, Watched(one, len(x), statistics)

    @contextmanager
    def _as_judged(self) -> Iterator[None]:
        quick = torch.backends.mha.get_fastpath_enabled()
        active = [one for one in self._in_training if one.training]
        for one in active:
            one.training = False
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(quick)
            for one in active:
                one.training = True

    # ------------------------------------------------------------------ features and logits
    def _run(self, x: Tensor) -> Output:
        if self.last.name is None:
            logits = self._one_tensor(self.module(x))
            return Output(logits, logits)
        last = self._layer
        assert last is not None
        if self._halves:
            features = self.module.features(x)  # type: ignore[operator]
            return Output(features, last(features))
        with Caught(last) as caught:
            logits = self._one_tensor(self.module(x))
        if caught.inputs:
            return Output(caught.inputs[-1], logits)
        if self.last.given is not None:
            raise DataError(
                f"The model {type(self.module).__name__} does not use its layer '{self.last.name}'; "
                "name its last layer: Network(module, head='...')."
            )
        self.last.drop()  # the last linear layer is something else
        return Output(logits, logits)

    def _one_tensor(self, outputs: Any) -> Tensor:
        """What a module puts out; of a record with logits, such as transformers' models give, these."""
        logits = getattr(outputs, "logits", outputs)
        if not isinstance(logits, Tensor):
            raise DataError(
                f"The model {type(self.module).__name__} returns a {type(outputs).__name__}; it must return one "
                "tensor, a row of outputs per sample."
            )
        return logits


def _in_halves(module: nn.Module) -> bool:
    """Whether a module gives the last layer's input by a method of its own."""
    features = getattr(module, "features", None)
    return callable(features) and not isinstance(features, nn.Module)
