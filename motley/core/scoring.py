"""Scores of outputs that several problems share, as plain functions of tensors."""

from __future__ import annotations

import torch
from torch import Tensor


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


def average_precision(score: Tensor, y: Tensor) -> float | None:
    """Precision at each recall, averaged over the steps of recall; None where nothing is positive.

    ``sum_n (R_n - R_{n-1}) P_n`` over the different scores from the highest, as scikit-learn has it.
    """
    positive = (y == 1).double()
    if float(positive.sum()) == 0:
        return None
    kinds, inverse = torch.unique(score.double(), return_inverse=True)
    size = len(kinds)
    hits = torch.zeros(size, dtype=torch.float64, device=score.device).index_add_(0, inverse, positive).flip(0)
    taken = torch.bincount(inverse, minlength=size).flip(0)
    found = hits.cumsum(0)
    return float((hits / positive.sum() * found / taken.cumsum(0)).sum())


def f1(hits: Tensor, guessed: Tensor, true: Tensor) -> Tensor:
    """Harmonic mean of precision and recall from counts; 0 where there is neither."""
    return 2 * hits / (guessed + true).clamp_min(1)


def calibration_error(confidence: Tensor, right: Tensor, bins: int = 15) -> float:
    """Gap of confidence and accuracy in bins of equal width, weighted by their samples (Guo et al., 2017)."""
    place = (confidence.double() * bins).ceil().long().sub(1).clamp(0, bins - 1)
    size = torch.zeros(bins, dtype=torch.float64, device=confidence.device)
    gap = size.clone().index_add_(0, place, confidence.double() - right.double())
    return float(gap.abs().sum() / len(confidence))
