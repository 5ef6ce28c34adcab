"""Who takes part, and whom the model serves: diagnostics of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from motley.core.network import Network
from motley.data.federated import FederatedData
from motley.runtime.diagnostics import DIAGNOSTICS, Moment


def jain_index(counts: ArrayLike) -> float:
    """``(sum x)^2 / (n sum x^2)``: 1 where all are equal, 1/n where one has everything (1 where nobody has any)."""
    x = np.asarray(counts, np.float64)
    square = float((x * x).sum())
    return float(x.sum()) ** 2 / (len(x) * square) if square else 1.0


def by_group(values: ArrayLike, order_by: ArrayLike, groups: int = 10) -> list[float]:
    """Mean value in each of ``groups`` equal groups of clients, from the smallest ``order_by`` to the largest."""
    x = np.asarray(values, np.float64)
    order = np.argsort(np.asarray(order_by), kind="stable")
    return [float(x[part].mean()) for part in np.array_split(order, min(groups, len(x)))]


def worst_share(values: ArrayLike, share: float = 0.1) -> float:
    """Mean of the lowest ``share`` of the values, at least one of them."""
    x = np.sort(np.asarray(values, np.float64))
    return float(x[: max(1, round(share * len(x)))].mean())


def participation(
    chosen: NDArray[np.integer[Any]], merged: NDArray[np.integer[Any]], speed: NDArray[np.float64]
) -> dict[str, Any]:
    """How evenly clients take part: Jain's index of tasks given and of updates merged, means by decile of speed."""
    found: dict[str, Any] = {"jain_chosen": jain_index(chosen), "jain_merged": jain_index(merged)}
    if len(np.unique(speed)) > 1:
        found["chosen_by_speed"] = by_group(chosen, speed)
        found["merged_by_speed"] = by_group(merged, speed)
    return found


@torch.no_grad()
def client_accuracies(net: Network, params: Tensor, data: FederatedData, batch_size: int = 4096) -> NDArray[np.float64]:
    """Accuracy of one model on every client's own samples, as that client sees them; of those that have any: [M]."""
    owner = np.repeat(np.arange(data.n_clients), data.sizes)
    hits = []
    home = data.dataset.x.device
    for begin in range(0, len(owner), batch_size):
        rows = torch.from_numpy(data.partition.index[begin : begin + batch_size]).to(home)
        x, y = data.gather(rows, torch.from_numpy(owner[begin : begin + batch_size]).to(home))
        guess = net(params, x.to(params.device)).logits.argmax(1)
        hits.append((guess == y.to(params.device)).double().cpu().numpy())
    right = np.bincount(owner, np.concatenate(hits), minlength=data.n_clients)
    return right[data.sizes > 0] / data.sizes[data.sizes > 0]


@DIAGNOSTICS.add(hidden=("moment",), needs=("labels",))
def service(moment: Moment) -> dict[str, float]:
    """How evenly the model serves clients: mean, deviation and worst decile of accuracy on their own samples."""
    if moment.judged is None:
        return {}
    accuracy = client_accuracies(moment.experiment.net, moment.params, moment.experiment.data)
    return {
        "client_accuracy": float(accuracy.mean()),
        "client_accuracy_deviation": float(accuracy.std()),
        "client_accuracy_worst_decile": worst_share(accuracy),
    }
