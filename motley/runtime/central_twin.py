"""A model trained centrally beside a federated one: what the same samples give without a federation."""

from __future__ import annotations

import torch
from torch import Tensor

from motley.client.trainer import Training, new_client, train
from motley.core.keys import Key
from motley.core.part import compose
from motley.core.types import Data, Facts
from motley.runtime.experiment import Experiment


def train_centrally(
    e: Experiment, twin: Tensor, rows: Tensor, owners: Tensor, *, key: Key, lr: float, steps: int, batch_size: int
) -> Tensor:
    """The twin [P] after some steps on these samples, each as its owner sees it, with the run's optimizer."""
    x, y = e.data.gather(rows, owners)
    data = Data(x.to(twin.device), y.to(twin.device))
    training = Training(e.net, compose(name="central"), e.training.optimizer, batch_size, problem=e.problem)
    numbers = {"n": float(len(y)), "lr": lr, "epochs": 1.0, "steps": float(steps)}
    values = {name: torch.tensor(numbers.get(name, 0.0), device=twin.device) for name in Facts._fields}
    values["labels"] = torch.zeros(e.data.n_classes, device=twin.device)
    client = new_client(training, twin, Facts(**values), key.tensor(twin.device))
    moved: Tensor = twin + train(training, client, data).payload
    return moved
