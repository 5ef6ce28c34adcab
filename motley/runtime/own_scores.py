"""How good a model is for each client, on the client's own test samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from motley.core.network import Network
from motley.core.problem import Problem
from motley.data.federated import FederatedData
from motley.runtime.fairness import worst_share

BATCH = 4096
DIGITS = 6  # of a client's score in the records


Served = Callable[[int], Tensor]
"""The model that a client uses itself: [P]."""


@torch.no_grad()
def outputs_of_each(net: Network, problem: Problem, served: Served, data: FederatedData) -> tuple[Tensor, Tensor]:
    """As `outputs_of_all`, of the models that clients use themselves."""
    outputs, targets = [], []
    home = data.dataset.x.device
    for client, (begin, end) in enumerate(zip(data.partition.offsets[:-1], data.partition.offsets[1:], strict=True)):
        rows = torch.from_numpy(data.partition.index[begin:end])
        params = served(client) if len(rows) else None
        for r in rows.split(BATCH):
            x, y = data.gather(r.to(home), torch.full_like(r, client).to(home))
            assert params is not None
            targets.append(y.to(params.device))
            outputs.append(problem.kept(net(params, x.to(params.device)).logits, targets[-1]))
    return torch.cat(outputs), torch.cat(targets)


@torch.no_grad()
def outputs_of_all(net: Network, problem: Problem, params: Tensor, data: FederatedData) -> tuple[Tensor, Tensor]:
    """What is kept of outputs, and targets, of all clients' samples, one client after the other, as these see them."""
    owner = torch.from_numpy(np.repeat(np.arange(data.n_clients), data.sizes))
    rows, home = torch.from_numpy(data.partition.index), data.dataset.x.device
    outputs, targets = [], []
    for r, who in zip(rows.split(BATCH), owner.split(BATCH), strict=True):
        x, y = data.gather(r.to(home), who.to(home))
        targets.append(y.to(params.device))
        outputs.append(problem.kept(net(params, x.to(params.device)).logits, targets[-1]))
    return torch.cat(outputs), torch.cat(targets)


def scores_by_client(
    net: Network, problem: Problem, params: Tensor, data: FederatedData, served: Served | None = None
) -> dict[str, list[float]]:
    """By score: a value for each client, nan where it has no test sample; ``served``: of models of their own."""
    outputs, y = (
        outputs_of_all(net, problem, params, data) if served is None else outputs_of_each(net, problem, served, data)
    )
    found: dict[str, list[float]] = {}
    for client, (begin, end) in enumerate(zip(data.partition.offsets[:-1], data.partition.offsets[1:], strict=True)):
        if end > begin:
            for name, value in problem.judge(outputs[begin:end], y[begin:end]).items():
                found.setdefault(name, [math.nan] * data.n_clients)[client] = float(value)
    return found


def own_scores(
    net: Network, problem: Problem, params: Tensor, data: FederatedData, served: Served | None = None
) -> dict[str, Any]:
    """What a round's record tells: means over clients, of the headline also spread and worst decile, and all of it."""
    by_client = scores_by_client(net, problem, params, data, served)
    told: dict[str, Any] = {}
    for name, values in by_client.items():
        known = np.array([value for value in values if math.isfinite(value)])
        if not len(known):
            continue
        told[f"own_{name}"] = float(known.mean())
        if name == problem.headline:
            sign = problem.better(name)
            told[f"own_{name}_deviation"] = float(known.std())
            told[f"own_{name}_worst_decile"] = sign * worst_share(sign * known)
    headline = by_client.get(problem.headline, [])
    told["own_scores"] = [round(value, DIGITS) if math.isfinite(value) else None for value in headline]
    return told
