"""A federation small enough to follow by hand, and clients made of plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from motley.client.optimizer import SGD
from motley.client.trainer import Training, new_client
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import Method
from motley.core.types import Batch, Client, Data, Facts
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData, Partition
from motley.fleet.fleet import Fleet
from motley.nets import build
from motley.runtime.experiment import Experiment, Given, prepare
from motley.runtime.recipe import Recipe
from tests.tiny import dials_at

N_CLASSES = 4
SIZES = (13, 9, 16, 7)


def small_data() -> FederatedData:
    """Four clients with 13, 9, 16 and 7 samples of 2 or 3 of 4 classes."""
    rng = np.random.default_rng(3)
    held = [(0, 1), (1, 2), (2, 3, 0), (3,)]
    y = np.concatenate([rng.permutation(np.resize(np.array(c), n)) for c, n in zip(held, SIZES, strict=True)])
    centre = rng.normal(size=(N_CLASSES, 6))
    x = (centre[y] + 0.7 * rng.normal(size=(len(y), 6))).astype(np.float32)
    labels = torch.from_numpy(y.astype(np.int64))
    dataset = Dataset("small", torch.from_numpy(x), labels, torch.from_numpy(x), labels, N_CLASSES)
    stops = np.cumsum(SIZES)
    return FederatedData(dataset, Partition.of([np.arange(b - n, b) for b, n in zip(stops, SIZES, strict=True)]))


def small_public() -> Data:
    """Six samples of each class that the server holds."""
    rng = np.random.default_rng(4)
    y = np.arange(6 * N_CLASSES) % N_CLASSES
    x = (y[:, None] + rng.normal(size=(len(y), 6))).astype(np.float32)
    return Data(torch.from_numpy(x), torch.from_numpy(y))


def small_experiment(method: str, limited: tuple[int, ...] = (), **changes: Any) -> Experiment:
    """All four clients in every round, an MLP with one hidden layer, SGD with momentum and weight decay."""
    content: dict[str, Any] = {
        "method": method,
        "model": "mlp(hidden=[5])",
        "clients": 4,
        "cohort": 4,
        "rounds": 3,
        "epochs": 2,
        "batch_size": 5,
        "lr": 0.1,
        "optimizer": "sgd(momentum=0.5, weight_decay=0.01)",
        "executor": "loop",
        **changes,
    }
    fleet = Fleet.ideal(4, Key.root(0))
    mask = fleet.limited.copy()
    mask[list(limited)] = True
    given = Given(data=small_data(), fleet=fleet.with_(limited=mask), public=small_public())
    return prepare(Recipe(**content), given)


def small_network(classes: int = N_CLASSES) -> Network:
    return build("mlp(hidden=[5])", (6,), classes, 0, Key.root(1))


def facts(labels: list[float], limited: float = 0.0) -> Facts:
    one = torch.tensor
    return Facts(
        client=one(0),
        round=one(1),
        n=one(sum(labels)),
        labels=one(labels),
        lr=one(0.1),
        epochs=one(1.0),
        steps=one(1.0),
        limited=one(limited),
        speed=one(1.0),
        upload=one(1.0),
    )


def client(method: Method, net: Network, params: Tensor, labels: list[float], **rest: Any) -> Client:
    """A client of one method, in round 1."""
    training = Training(net, method, SGD(), 32)
    given: dict[str, Any] = {"down": {}, "own": {}, **rest}
    return new_client(training, params, facts(labels), Key.root(0).tensor(), dials=dials_at(method), **given)


def adjusted(method: Method, z: Tensor, labels: list[float]) -> Tensor:
    """Logits [B, C] after a method's logit hooks, for a client with these label counts."""
    net = small_network(z.shape[-1])
    c = client(method, net, net.initial(), labels)
    batch = Batch(torch.zeros(len(z), 6), torch.zeros(len(z), dtype=torch.int64))
    for name, hook in method.hooks("logits"):
        z = hook(c, c.mine(name), batch, z)
    return z
