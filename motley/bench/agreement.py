"""Whether the batched executor gives what the loop gives: every part and every method, on a tiny problem.

Clients hold unequal numbers of samples with uneven classes, train fractions of epochs, some on limited devices. Each
method runs for two rounds with the loop executor on the CPU and with the batched one on the given device; the global
models are compared, and the bytes that were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import motley.methods  # noqa: F401  (registers parts and methods)
from motley.core.errors import UnknownNameError
from motley.core.keys import Key
from motley.core.part import PARTS, Method, compose
from motley.core.types import Data
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData, Partition
from motley.fleet.fleet import Fates, Fleet
from motley.methods import METHODS
from motley.nets.zoo import build
from motley.runtime.experiment import Experiment, Given, prepare
from motley.runtime.launch import Run
from motley.runtime.recipe import Recipe

Row = dict[str, Any]
MODELS = {"mlp": "mlp(hidden=[12])", "cnn": "cnn_ama(channels=[3, 4], hidden=[10], padding=2)"}
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-3}
"""Largest difference, relative to the largest change of any weight by the loop's run."""
SIZES = (7, 16, 5, 21, 10, 13)
CLASSES = 4
ROUNDS = 2


class Subject(NamedTuple):
    """A part by itself, or a method."""

    kind: str
    name: str
    make: Callable[[], Method]


def _alone(name: str) -> Method:
    entry = PARTS[name]
    return compose(PARTS.make(name, **entry.meta["example"]), protocol=entry.meta.get("protocol"))


def subjects(names: Sequence[str] = ()) -> Iterator[Subject]:
    """Every part (with its example arguments) and every method, or those named."""
    found = [Subject("part", entry.name, partial(_alone, entry.name)) for entry in PARTS]
    for entry in METHODS:
        found.append(Subject("method", entry.name, partial(METHODS.make, entry.name)))
    known = {one.name for one in found}
    for name in names:
        if name not in known:
            raise UnknownNameError("part or method", name, known)
    yield from (one for one in found if not names or one.name in names)


def _affordable(clients: Any, number: int, fates: Fates) -> Fates:
    """Two devices must stop before they have trained as long as wanted."""
    limits = np.full(len(SIZES), np.inf)
    limits[[0, 3]] = 1.2, 0.7
    return fates._replace(affordable=np.minimum(fates.affordable, limits[np.asarray(clients)]))


def tiny_data(image: bool) -> FederatedData:
    """Classes around centres of their own, unevenly divided; images of 8 x 8, or tables of 64 columns."""
    rng = Key.root(1).fold("agreement").generator()
    total = sum(SIZES)
    y = np.arange(total + 40) % CLASSES
    x = (rng.normal(0, 1.0, (CLASSES, 64))[y] + rng.normal(0, 0.8, (len(y), 64))).astype(np.float32)
    inputs = torch.from_numpy(x).view(-1, 1, 8, 8) if image else torch.from_numpy(x)
    labels = torch.from_numpy(y)
    kind = "image" if image else "table"
    parts = (inputs[:total], labels[:total], inputs[total:], labels[total:])
    dataset = Dataset("tiny", *parts, CLASSES, None, kind)
    order = np.argsort(y[:total] + 2.5 * rng.random(total), kind="stable")
    return FederatedData(dataset, Partition.of(np.split(order, np.cumsum(SIZES)[:-1])))


def _public(data: FederatedData) -> Data:
    """Samples of the server's own, for parts that need some."""
    return Data(data.dataset.test_x, data.dataset.test_y)


def tiny_fleet() -> Fleet:
    """Devices up to six times apart, half of them limited, two of which stop early."""
    speed = 1e6 * np.linspace(1, 6, len(SIZES))
    fleet = Fleet.ideal(len(SIZES), Key.root(4))
    limited = np.arange(len(SIZES)) % 2 == 0
    return fleet.with_(flops=speed, up=speed / 50, down=speed / 10, limited=limited, fortune=(_affordable,))


def tiny_experiment(method: Method, model: str, **settings: Any) -> Experiment:
    """Two rounds of two and a half epochs on five of six clients."""
    data = tiny_data(image=model == "cnn")
    net = build(MODELS[model], data.dataset.input_shape, CLASSES, 0, Key.root(3).fold("init"))
    base: dict[str, Any] = {"rounds": ROUNDS, "cohort": 5, "epochs": 2.5, "batch_size": 4, "lr": 0.05, "seed": 5}
    recipe = Recipe(**{**base, "optimizer": "sgd(momentum=0.5)", "evaluate_every": ROUNDS, **settings})
    return prepare(recipe, Given(data, net, method, tiny_fleet(), public=_public(data)))


def _trained(method: Method, model: str, **settings: Any) -> tuple[Tensor, list[int]]:
    """The last global model, and the bytes sent up in each round, which tell what layers were trained."""
    result = Run(tiny_experiment(method, model, **settings), None).go()
    return result.params.cpu(), [record.bytes_up for record in result.records]


def compare(subject: Subject, model: str, device: str) -> Row:
    """Both executors on one method."""
    method = subject.make()
    start = tiny_experiment(method, model).net.initial()
    loop, sent = _trained(method, model, executor="loop", device="cpu")
    batched, sent_batched = _trained(subject.make(), model, executor="batched", device=device, workers=1)
    absolute = float((loop - batched).abs().max())
    scale = float((loop - start).abs().max())
    relative = absolute / scale if scale > 0 else absolute
    tolerance = TOLERANCE[device.split(":", maxsplit=1)[0]]
    return {
        "kind": subject.kind,
        "name": subject.name,
        "model": model,
        "device": device,
        "absolute": float(f"{absolute:.3g}"),
        "relative": float(f"{relative:.3g}"),
        "tolerance": tolerance,
        "same_bytes": sent == sent_batched,
        "agrees": relative <= tolerance and sent == sent_batched,
    }


def agreement(
    device: str = "cpu",
    names: Sequence[str] = (),
    models: Sequence[str] = tuple(MODELS),
    tell: Callable[[Row], None] = lambda _: None,
) -> list[Row]:
    """One row per part or method and model."""
    rows = []
    for subject in subjects(names):
        for model in models:
            row = compare(subject, model, device)
            tell(row)
            rows.append(row)
    return rows
