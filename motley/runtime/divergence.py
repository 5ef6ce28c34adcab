"""How far federated models drift: from a centralised twin (DC), and from one another (DL), as RADFed measures it (V-B).

Both are diagnostics, ``diagnostics = ["dc", "dl"]``, recorded after every round; with walking models a round is one
redistribution.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from motley.data.analytics import c_score, size_statistics
from motley.data.datasets import load as load_dataset
from motley.data.split import pooled
from motley.runtime.central_twin import train_centrally
from motley.runtime.diagnostics import DIAGNOSTICS, Moment
from motley.runtime.experiment import Experiment, initial_params, share_out


def mean_cosine_distance(vectors: Tensor) -> float:
    """``binom(K, 2)^-1 sum_{i<j} (1 - w_i . w_j / (||w_i|| ||w_j||))`` of [K, P] (RADFed, eq. 3); a zero vector has
    cosine 0 with all others.

    Computed in double precision: local models differ little in angle.
    """
    units = torch.nn.functional.normalize(vectors.double(), dim=1, eps=1e-300)
    k = len(units)
    same = units.square().sum()  # K, less where a vector is zero
    return float(1.0 - (units.sum(0).square().sum() - same) / (k * (k - 1)))


@DIAGNOSTICS.add(hidden=("moment",), needs=("labels",))
def population(moment: Moment) -> dict[str, Any]:
    """Sizes and C-score of all clients, before any split, with training and test samples pooled (RADFed, Table I).

    Recorded after the first round.
    """
    if moment.number > 1:
        return {}
    recipe = moment.experiment.recipe
    labels = share_out(recipe, pooled(load_dataset(recipe.data))).labels
    return {key: float(value) for key, value in size_statistics(labels.sum(1))._asdict().items()} | {
        "c_score": c_score(labels)
    }


@DIAGNOSTICS.add(hidden=("moment",))
def dl(moment: Moment) -> dict[str, Any]:
    """Mean cosine distance of the round's local models (RADFed, eq. 3), and of their changes (dl_changes)."""
    updates = moment.updates
    if updates is None or len(updates) < 2:
        return {}
    return {"dl": mean_cosine_distance(updates.models), "dl_changes": mean_cosine_distance(updates.delta)}


@DIAGNOSTICS.add(hidden=("moment",))
def dc(moment: Moment) -> dict[str, Any]:
    """Distance from a twin trained centrally on the same data: ``||w - w_C|| / ||w_C||`` (RADFed, V-B).

    The twin starts from the same weights. In each round it takes the samples of the clients whose updates came, puts
    them together, and trains on them for as many epochs with minibatches K times as large for K clients, so that it
    makes about as many steps as one of them. Nothing (null) is recorded from the round on in which the twin stops being
    finite: a rate that suits clients may be too large for it.
    """
    twin = moment.memory.get("dc", initial_params(moment.experiment)).to(moment.params.device)
    if moment.updates is not None:
        ids = moment.updates.ids.tolist()
        epochs, lr = float(moment.updates.epochs.mean()), float(moment.updates.lr.mean())
        twin = _together(moment.experiment, twin, ids, moment.number, epochs, lr)
    moment.memory["dc"] = twin
    distance = float((moment.params - twin).norm() / twin.norm())
    return {"dc": distance if math.isfinite(distance) else None}


def _together(e: Experiment, twin: Tensor, ids: list[int], number: int, epochs: float, lr: float) -> Tensor:
    """The twin after one round on the samples of these clients."""
    rows = np.concatenate([e.data.partition[i] for i in ids])
    owners = torch.from_numpy(np.repeat(ids, e.data.sizes[ids]))
    batch_size = e.recipe.batch_size * len(ids)
    steps = max(1, round(epochs * math.ceil(len(rows) / batch_size)))
    key = e.key.fold("dc", number)
    return train_centrally(e, twin, torch.from_numpy(rows), owners, key=key, lr=lr, steps=steps, batch_size=batch_size)
