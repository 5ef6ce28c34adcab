"""What a run measures beside accuracy, when asked: ``diagnostics = ["diversity", "per_class", ...]``.

Each diagnostic is a function of a `Moment` that returns numbers for `Record.extra`. None of them changes the run, so a
run with diagnostics gives the same model as one without.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from motley.client.minibatch import n_steps
from motley.core.registry import Registry
from motley.core.schedule import value_at
from motley.core.types import Data, Tree, Updates
from motley.runtime.central_twin import train_centrally
from motley.runtime.evaluation import Judged
from motley.runtime.experiment import Experiment, initial_params
from motley.server.retrain import train_head

STABLE_ROUNDS = 50
FINE_TUNED_CLIENTS = 20


@dataclass
class Moment:
    """A run right after a round."""

    experiment: Experiment
    number: int  # of the round
    params: Tensor  # [P] the new global model, or what the protocol shows in its place
    updates: Updates | None  # what was merged or handed on; None where nothing came
    judged: Judged | None  # None where this round is not evaluated
    history: list[float]  # the headline score of all evaluated rounds so far, this one included
    memory: dict[str, Tree] = field(default_factory=dict)  # of one run; survives a checkpoint


DIAGNOSTICS: Registry[dict[str, Any]] = Registry("diagnostic")
"""Factories ``f(moment: Moment) -> numbers by name``; ``needs`` names what the problem must offer, as for parts."""

_add = partial(DIAGNOSTICS.add, hidden=("moment",))


class Diagnostics:
    """The diagnostics one run was asked for."""

    def __init__(self, names: Iterable[str]) -> None:
        self.functions: list[Callable[[Moment], dict[str, Any]]] = [DIAGNOSTICS[name].factory for name in names]

    def measure(self, moment: Moment) -> dict[str, Any]:
        """Everything asked for, after one round."""
        found: dict[str, Any] = {}
        for function in self.functions:
            found.update(function(moment))
        return found


def stability(accuracies: Sequence[float], rounds: int = STABLE_ROUNDS) -> float | None:
    """Variance of the test accuracy, in percent, over the last evaluated rounds (AMA-FES); None with fewer than two."""
    last = [100.0 * value for value in accuracies[-rounds:]]
    return statistics.variance(last) if len(last) > 1 else None


def weight_diversity(models: Tensor) -> float:
    """``mean_i ||w_i - mean(w)||^2`` of local models [K, P] (ReBaFL, eq. 24)."""
    return float((models - models.mean(0)).square().sum(1).mean())


@_add()
def diversity(moment: Moment) -> dict[str, Any]:
    """Weight diversity of the round's local models (ReBaFL, eq. 24)."""
    if moment.updates is None:
        return {}
    return {"diversity": weight_diversity(moment.updates.models)}


@_add()
def per_class(moment: Moment) -> dict[str, Any]:
    """Test accuracy within each class."""
    found = {} if moment.judged is None else moment.judged.details()
    if "per_class" not in found:
        return {}
    return {"per_class": [None if math.isnan(value) else round(value, 6) for value in found["per_class"]]}


@_add(name="stability")
def running_stability(moment: Moment) -> dict[str, Any]:
    """Variance of the test accuracy (in percent) over the last 50 evaluated rounds."""
    value = stability(moment.history)
    return {} if value is None else {"stability": value}


@_add()
def centralised(moment: Moment) -> dict[str, Any]:
    """Divergence from a twin that is trained centrally: ``||w - w_c|| / ||w_c||`` (Zhao et al. 2018).

    The twin starts from the same weights and takes, in each round, as many minibatch steps as a client of mean size
    would, on minibatches drawn from all clients' samples together, with the same optimizer and learning rate.
    """
    done, twin = moment.memory.get("centralised", (0, initial_params(moment.experiment)))
    for number in range(done + 1, moment.number + 1):
        twin = _central_round(moment.experiment, twin.to(moment.params.device), number)
    moment.memory["centralised"] = (moment.number, twin)
    return {"centralised": float((moment.params - twin).norm() / twin.norm())}


def _central_round(e: Experiment, twin: Tensor, number: int) -> Tensor:
    recipe, key = e.recipe, e.key.fold("centralised", number)
    steps = n_steps(recipe.epochs, round(float(e.data.sizes.mean())), recipe.batch_size)
    places = key.generator().integers(len(e.data.partition.index), size=steps * recipe.batch_size)
    owners = np.searchsorted(e.data.partition.offsets, places, side="right") - 1
    rows = torch.from_numpy(e.data.partition.index[places])
    lr = value_at(e.learning_rate, number)
    return train_centrally(
        e, twin, rows, torch.from_numpy(owners), key=key, lr=lr, steps=steps, batch_size=recipe.batch_size
    )


@_add(needs=("labels", "features"))
def fine_tuned(moment: Moment) -> dict[str, Any]:
    """Accuracy on clients' own label mix before and after fine-tuning the head there (FedBABU); in the last round.

    Up to 20 clients; the head takes 20 full-batch steps at the run's learning rate on the client's samples. A client's
    accuracy is that on the test set with its classes weighted as in its own data.
    """
    e = moment.experiment
    if moment.number != e.recipe.rounds:
        return {}
    ids = e.key.fold("fine_tuned").generator().permutation(e.data.n_clients)[:FINE_TUNED_CLIENTS]
    before: list[float] = []
    after: list[float] = []
    x, y = e.dataset.test_x, e.dataset.test_y.to(moment.params.device)
    with torch.no_grad():
        parts = x.split(2048)
        features = torch.cat([e.net.features(moment.params, e.dataset.inputs(p.to(y.device))) for p in parts])
    for client in sorted(int(i) for i in ids):
        own = e.data.client(client)
        local = Data(own.x.to(y.device), own.y.to(y.device))
        tuned = train_head(e.net, moment.params, local, 20, e.recipe.lr)
        share = torch.from_numpy(e.data.labels_of(client)).to(y.device, torch.float32)
        for params, found in ((moment.params, before), (tuned, after)):
            hits = (e.net.classify(params, features).argmax(1) == y).to(torch.float32)
            right = torch.zeros_like(share).index_add_(0, y, hits)
            total = torch.bincount(y, minlength=len(share)).clamp_min(1)
            found.append(float((right / total * share).sum() / share.sum()))
    return {"personal": statistics.fmean(before), "fine_tuned": statistics.fmean(after)}
