"""Problems of labels that are there or not: one of them (binary), or several at once (multi-label)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from motley.client.problems import PROBLEMS
from motley.core.errors import DataError
from motley.core.problem import Learned, Problem
from motley.core.ranges import Positive
from motley.core.scoring import area_under_curve, average_precision, calibration_error, f1


def _known(values: list[float | None]) -> float:
    """The mean of what could be told; nan where nothing could."""
    some = [value for value in values if value is not None]
    return sum(some) / len(some) if some else float("nan")


class Binary(Problem):
    """One of two classes by one number, the logit of class 1; ``positive`` is what a sample of class 1 counts."""

    classes = True
    fractions = frozenset({"accuracy", "f1", "auc", "average_precision", "calibration_error"})

    def __init__(self, positive: float = 1.0) -> None:
        goals = {"accuracy": 1, "auc": 1, "f1": 1, "average_precision": 1, "calibration_error": -1}
        super().__init__(name="binary", goals=goals)
        self.positive = positive

    def width(self, dataset: Learned) -> int:
        return 1

    def arranged(self, dataset: Any) -> Any:
        if dataset.n_classes != 2:
            what = f"{dataset.n_classes} classes" if dataset.n_classes else "targets that are no classes"
            raise DataError(f"problem=binary needs labels 0 and 1, but '{dataset.name}' has {what}.")
        return dataset

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        weight = torch.as_tensor(self.positive, device=outputs.device)
        wanted = y.to(outputs.dtype)
        return binary_cross_entropy_with_logits(_column(outputs), wanted, pos_weight=weight, reduction="none")

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Accuracy, area under the ROC curve, F1 of class 1, average precision, calibration error, loss."""
        logit = _column(outputs)
        guess, true = logit > 0, y == 1
        chance = torch.sigmoid(logit.double())
        found = {
            "accuracy": float((guess == true).double().mean()),
            "auc": area_under_curve(logit, y),
            "f1": float(f1((guess & true).sum(), guess.sum(), true.sum())),
            "average_precision": average_precision(logit, y),
            "calibration_error": calibration_error(torch.where(guess, chance, 1 - chance), guess == true),
            "loss": float(self.losses(outputs, y).mean()),
        }
        return {name: value for name, value in found.items() if value is not None}


def _column(outputs: Tensor) -> Tensor:
    return outputs.squeeze(-1) if outputs.dim() > 1 else outputs


class MultiLabel(Problem):
    """Any number of labels at once, each by a logit of its own; the mean of their cross-entropies."""

    fractions = frozenset({"average_precision", "auc", "macro_f1", "micro_f1", "all_right"})

    def __init__(self) -> None:
        goals = {"average_precision": 1, "auc": 1, "macro_f1": 1, "micro_f1": 1, "all_right": 1}
        super().__init__(name="multilabel", goals=goals)

    def arranged(self, dataset: Any) -> Any:
        for y in (dataset.y, dataset.test_y):
            if y.dim() != 2 or not bool(((y == 0) | (y == 1)).all()):
                raise DataError(
                    f"problem=multilabel needs targets of 0 and 1, a column for each label; those of '{dataset.name}' "
                    f"have the shape {list(y.shape)}" + ("." if y.dim() != 2 else " and other values.")
                )
        return dataset

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none").mean(-1)

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Means over labels of average precision, of the area under the ROC curve and of F1, F1 over all decisions,
        the share of samples all of whose labels are right, the loss."""
        guess, true = outputs > 0, y == 1
        hits, guessed, wanted = (guess & true).sum(0), guess.sum(0), true.sum(0)
        columns = list(zip(outputs.unbind(1), y.unbind(1), strict=True))
        found = {
            "average_precision": _known([average_precision(*column) for column in columns]),
            "auc": _known([area_under_curve(*column) for column in columns]),
            "macro_f1": float(f1(hits, guessed, wanted).double().mean()),
            "micro_f1": float(f1(hits.sum(), guessed.sum(), wanted.sum())),
            "all_right": float((guess == true).all(1).double().mean()),
            "loss": float(self.losses(outputs, y).mean()),
        }
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def details(self, outputs: Tensor, y: Tensor) -> dict[str, list[float]]:
        """``per_class``: the average precision of each label; nan where no sample has it."""
        columns = zip(outputs.unbind(1), y.unbind(1), strict=True)
        return {"per_class": [_known([average_precision(*column)]) for column in columns]}


@PROBLEMS.add()
def binary(positive: Positive = 1.0) -> Problem:
    """One of two classes by one number: accuracy, AUC, F1, calibration. positive: what a sample of class 1 counts."""
    return Binary(positive)


@PROBLEMS.add()
def multilabel() -> Problem:
    """Any number of labels at once: average precision, AUC and F1, averaged over labels."""
    return MultiLabel()
