"""The workloads that benchmarks share. Data are random: speed does not depend on what is learned."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from motley.client.optimizer import make_optimizer
from motley.client.site import Devices, Site
from motley.client.trainer import Training
from motley.core.codec import Content
from motley.core.errors import UnknownNameError
from motley.core.keys import Key
from motley.core.tasks import NOTHING, Assignment, Weights
from motley.data.dataset import Dataset, Scaling
from motley.data.federated import FederatedData, Partition
from motley.fleet.fleet import Fleet
from motley.methods import make_method
from motley.nets.zoo import build


@dataclass(frozen=True)
class Case:
    """One federated workload."""

    name: str
    summary: str
    shape: tuple[int, ...]
    model: str
    population: int
    cohort: int
    epochs: float
    batch_size: int
    samples: int  # per client; the mean where sizes follow a power law
    power_law: bool = False
    lr: float = 0.05
    method: str = "fedavg"
    optimizer: str = "sgd"
    classes: int = 10
    extra: dict[str, float] = field(default_factory=dict)


CASES = {
    case.name: case
    for case in (
        Case(
            "cifar10_pfl",
            "pfl-research's CIFAR-10 setting: 1000 clients of 50 images, 50 per round, 1 epoch, batch 10",
            (3, 32, 32), "cnn_pfl", 1000, 50, 1, 10, 50,
        ),
        Case(
            "fedsae_logistic",
            "FedSAE's logistic regression: 1000 power-law clients, 30 per round, 10 epochs, batch 10",
            (1, 28, 28), "logistic", 1000, 30, 10, 10, 69, power_law=True,
        ),
        Case(
            "rebafl_cnn",
            "ReBaFL's CNN: 50 clients of 1000 images, 25 per round, 5 epochs, batch 50",
            (1, 28, 28), "cnn_rebafl", 50, 25, 5, 50, 1000,
        ),
        Case(
            "rebafl_cifar",
            "ReBaFL's CNN for colour images: 50 clients of 1000 images, 25 per round, 5 epochs, batch 50",
            (3, 32, 32), "cnn_rebafl", 50, 25, 5, 50, 1000,
        ),
        Case(
            "mlp",
            "A small MLP: 100 clients of 60 samples, 20 per round, 5 epochs, batch 10",
            (1, 28, 28), "mlp(hidden=[128])", 100, 20, 5, 10, 60,
        ),
        Case(
            "lstm",
            "Next character: 100 roles of 40 windows, 10 per round, 1 epoch, batch 10",
            (80,), "char_lstm", 100, 10, 1, 10, 40, classes=80,
        ),
    )
}  # fmt: skip


def case_named(name: str) -> Case:
    if name not in CASES:
        raise UnknownNameError("case", name, CASES)
    return CASES[name]


def make_data(case: Case, key: Key) -> FederatedData:
    """Random samples for every client of the population."""
    rng = key.generator()
    if case.power_law:
        raw = rng.lognormal(0.0, 1.0, case.population)
        sizes = np.maximum(10, (raw / raw.mean() * case.samples)).astype(np.int64)
    else:
        sizes = np.full(case.population, case.samples, np.int64)
    total = int(sizes.sum())
    y = torch.from_numpy(rng.integers(0, case.classes, total))
    if len(case.shape) == 1:
        x, scaling, kind = torch.from_numpy(rng.integers(0, case.classes, (total, *case.shape))), None, "text"
    else:
        x = torch.from_numpy(rng.integers(0, 256, (total, *case.shape), dtype=np.uint8))
        scaling, kind = Scaling(1 / 255, 0.5, 0.25), "image"
    dataset = Dataset(
        case.name, x, y, x[:1], y[:1], case.classes, scaling, kind, vocabulary=case.classes if kind == "text" else 0
    )
    return FederatedData(dataset, Partition(np.arange(total), np.concatenate([[0], np.cumsum(sizes)])))


def make_training(case: Case, data: FederatedData, key: Key, precision: str = "float32") -> Training:
    net = build(case.model, data.dataset.input_shape, case.classes, data.dataset.vocabulary, key)
    return Training(net, make_method(case.method), make_optimizer(case.optimizer), case.batch_size, precision)


def make_site(case: Case, data: FederatedData, key: Key, precision: str = "float32") -> Site:
    """Where the clients of a case train, on equal devices."""
    training = make_training(case, data, key, precision)
    fleet = Fleet.ideal(data.n_clients, key.fold("fleet"))
    return Site(training, data, Devices.of(fleet, 1.0, 4 * training.net.size))


def make_tasks(case: Case, start: Weights, key: Key, number: int, down: Content = NOTHING) -> list[Assignment]:
    """The tasks of one round."""
    clients = key.fold("select", number).generator().choice(case.population, case.cohort, replace=False).tolist()
    epochs = float(case.epochs)
    return [
        Assignment(
            f"{number}.{client}", client, number, start, down, {}, epochs, epochs, False, case.lr,
            key.fold("client", number, client),
        )
        for client in clients
    ]  # fmt: skip
