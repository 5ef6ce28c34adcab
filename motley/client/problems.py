"""Problems by name: classification, regression. One's own is a `motley.Problem`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, huber_loss, l1_loss, log_softmax, mse_loss

from motley.core.acceleration import kernel_for
from motley.core.errors import InputError
from motley.core.problem import Problem
from motley.core.registry import Registry, parse
from motley.core.scoring import area_under_curve
from motley.core.types import Batch
from motley.core.vmapped import is_vmapped

PROBLEMS: Registry[Problem] = Registry("problem")
"""Factories of problems; add your own with ``@PROBLEMS.add()``."""


class Classification(Problem):
    """One class of several, by cross-entropy."""

    offers = frozenset({"labels", "features"})
    classes = True
    fractions = frozenset({"accuracy", "macro_f1", "auc", "weighted_f1"})

    def __init__(self) -> None:
        super().__init__(name="classification", goals={"accuracy": 1, "macro_f1": 1, "auc": 1, "weighted_f1": 1})

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(outputs, y, reduction="none")

    def mean_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """In few operations under `vmap`, where `cross_entropy` becomes two dozen."""
        logits = outputs
        if type(self).losses is not Classification.losses:
            return super().mean_loss(outputs, batch)  # another loss of classes
        if not is_vmapped(logits):
            return cross_entropy(logits, batch.y) if batch.mask is None else batch.mean(self.losses(logits, batch.y))
        run = kernel_for("cross_entropy", logits, batch)
        if run is not None:
            found: Tensor = run(logits, batch)
            return found
        chosen = batch.y.unsqueeze(-1) == torch.arange(logits.shape[-1], device=logits.device)
        return -batch.mean(torch.where(chosen, log_softmax(logits, -1), 0.0).sum(-1))

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Accuracy, loss, macro and weighted F1, and the area under the ROC curve where there are two classes."""
        true, guessed, hits = _counts(outputs, y)
        f1 = 2 * hits / (true + guessed).clamp_min(1)
        seen = (true + guessed) > 0
        found = {
            "accuracy": float(hits.sum() / true.sum()),
            "loss": float(cross_entropy(outputs, y)),
            "macro_f1": float(f1[seen].mean()),
        }
        area = area_under_curve(outputs[:, 1] - outputs[:, 0], y) if outputs.shape[1] == 2 else None
        if area is not None:
            found["auc"] = area
        return {**found, "weighted_f1": float((f1 * true).sum() / true.sum())}

    def details(self, outputs: Tensor, y: Tensor) -> dict[str, list[float]]:
        """``per_class``: the accuracy within each true class; nan where the class is absent."""
        true, _, hits = _counts(outputs, y)
        return {"per_class": (hits / true).tolist()}


def _counts(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Samples of each class, how often each was guessed, and how often rightly: [C] each."""
    n_classes = outputs.shape[1]
    flat = torch.bincount(y * n_classes + outputs.argmax(1), minlength=n_classes**2)
    table = flat.reshape(n_classes, n_classes).double().cpu()
    return table.sum(1), table.sum(0), table.diagonal()


_ERRORS: dict[str, Any] = {"squared": mse_loss, "absolute": l1_loss, "huber": huber_loss}


class Regression(Problem):
    """Numbers, by the squared, absolute or Huber error; several numbers per sample are averaged."""

    def __init__(self, error: str = "squared", delta: float = 1.0) -> None:
        if error not in _ERRORS:
            raise InputError(f"regression has no error '{error}'; choose one of {', '.join(_ERRORS)}.")
        super().__init__(name="regression", goals={"r2": 1, "mae": -1, "rmse": -1})
        self._error = _ERRORS[error]
        self._more = {"delta": delta} if error == "huber" else {}

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        wanted = y.reshape(outputs.shape)
        each: Tensor = self._error(outputs, wanted, reduction="none", **self._more)
        return each.flatten(1).mean(1)

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """R2 (over all numbers of all samples), mean absolute and root mean squared error, and the loss."""
        wanted = y.reshape(outputs.shape).double()
        gap = outputs.double() - wanted
        spread = (wanted - wanted.mean(0)).square().sum()
        left = gap.square().sum()
        return {
            "r2": float(1.0 - left / spread) if float(spread) > 0 else float("nan"),
            "mae": float(gap.abs().mean()),
            "rmse": float(gap.square().mean().sqrt()),
            "loss": float(self.losses(outputs, y).mean()),
        }


@PROBLEMS.add()
def classification() -> Problem:
    """One class of several, by cross-entropy: accuracy, F1, area under the curve for two classes."""
    return Classification()


@PROBLEMS.add()
def regression(error: str = "squared", delta: float = 1.0) -> Problem:
    """Numbers, by the squared, absolute or huber error: R2, mean absolute and root mean squared error."""
    return Regression(error, delta)


def make_problem(spec: str | Problem) -> Problem:
    """A problem from its short form, such as ``regression(error=huber)``; one that is made already as it is."""
    if isinstance(spec, Problem):
        return spec
    calls: list[Any] = parse(spec, "problem")
    if len(calls) != 1:
        raise InputError(f"A run has one problem, but '{spec}' names {len(calls)}.")
    return PROBLEMS.make(calls[0].name, **calls[0].arguments)
