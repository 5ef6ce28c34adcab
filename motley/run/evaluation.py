"""How good a model is: accuracy, loss, macro F1, AUC where there are two classes, accuracy per class."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from motley.core.network import Network
from motley.data.dataset import Dataset


class Scores(NamedTuple):
    """Scores on a test set."""

    accuracy: float
    loss: float
    macro_f1: float
    auc: float | None
    per_class: tuple[float, ...]  # accuracy within each true class; nan where the class is absent
    weighted_f1: float = 0.0  # F1 of each class, weighted by its samples


@torch.no_grad()
def predict(net: Network, params: Tensor, dataset: Dataset, x: Tensor, batch_size: int = 2048) -> Tensor:
    """Logits of stored inputs [N, C], on the parameters' device."""
    return torch.cat([net(params, dataset.inputs(part.to(params.device))).logits for part in x.split(batch_size)])


def scores(logits: Tensor, y: Tensor) -> Scores:
    """Scores of logits [N, C] against labels [N]."""
    n_classes = logits.shape[1]
    guess = logits.argmax(1)
    loss = float(cross_entropy(logits, y))
    table = torch.bincount(y * n_classes + guess, minlength=n_classes**2).reshape(n_classes, n_classes).double().cpu()
    hits = table.diagonal()
    true, guessed = table.sum(1), table.sum(0)
    f1 = 2 * hits / (true + guessed).clamp_min(1)
    seen = (true + guessed) > 0
    return Scores(
        accuracy=float(hits.sum() / table.sum()),
        loss=loss,
        macro_f1=float(f1[seen].mean()),
        auc=area_under_curve(logits[:, 1] - logits[:, 0], y) if n_classes == 2 else None,
        per_class=tuple((hits / true).tolist()),
        weighted_f1=float((f1 * true).sum() / true.sum()),
    )


def area_under_curve(score: Tensor, y: Tensor) -> float | None:
    """Area under the ROC curve by ranks; ties count half. None where one class is absent."""
    positive = y == 1
    n_pos, n_neg = int(positive.sum()), int((~positive).sum())
    if n_pos == 0 or n_neg == 0:
        return None
    _, inverse, counts = torch.unique(score.double(), return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    rank = (last - (counts.double() - 1) / 2)[inverse]
    return float((rank[positive].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg))


def evaluate(net: Network, params: Tensor, dataset: Dataset) -> Scores:
    """Scores of a model on the test set of a data set."""
    return scores(predict(net, params, dataset, dataset.test_x), dataset.test_y.to(params.device))
