"""A tiny experiment that tests share: a table of two dozen columns, unequal clients, a fleet on which parts matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from motley.core.codec import Content
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import Method
from motley.core.problem import Problem
from motley.core.schedule import value_at
from motley.core.tasks import NOTHING, Assignment, Failed, Finished, Weights
from motley.core.types import Data, Updates
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData, Partition
from motley.engine.executor import Executor, Own
from motley.fleet.fleet import Fate, Fates, Fleet
from motley.nets.zoo import build
from motley.runtime.experiment import Experiment, Given, prepare
from motley.runtime.launch import Result, Run
from motley.runtime.recipe import Recipe

SIZES = (7, 16, 5, 21, 10, 13)
CLASSES = 4
T = TypeVar("T")


def filled(hook: T | None) -> T:
    """A hook that a part is known to fill."""
    assert hook is not None
    return hook


def updates_of(delta: Tensor, trained: Tensor, **fields: Any) -> Updates:
    """Updates of round 1 with these changes [K, P] and trained layers [K, L]; everything else is 1 or what is given."""
    k = len(delta)
    plain: dict[str, Any] = dict.fromkeys(("n", "loss", "steps", "epochs", "lr", "duration"), torch.ones(k))
    plain |= {"ids": torch.arange(k), "round": torch.ones(k, dtype=torch.int64), "age": torch.zeros(k)}
    plain |= {"start": torch.zeros_like(delta), "delta": delta, "trained": trained, "extras": {}}
    given = {name: torch.tensor(value) if isinstance(value, list) else value for name, value in fields.items()}
    return Updates(**{**plain, **given})


def dials_at(method: Method, number: int = 1) -> dict[str, dict[str, Tensor]]:
    """The parts' numbers in a round, as client hooks read them."""
    return {
        part.name: {key: torch.tensor(value_at(value, number)) for key, value in part.dials.items()}
        for part in method.parts
    }


def dataset(n_features: int = 9, n_classes: int = CLASSES, n: int = sum(SIZES), seed: int = 1) -> Dataset:
    """Classes around centres of their own: a table of ``n`` rows, and 40 rows to test on."""
    rng = Key.root(seed).fold("tiny").generator()
    centres = rng.normal(0, 1.0, (n_classes, n_features))
    y = np.arange(n + 40) % n_classes
    x = (centres[y] + rng.normal(0, 0.8, (n + 40, n_features))).astype(np.float32)
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    return Dataset("tiny", inputs[:n], labels[:n], inputs[n:], labels[n:], n_classes)


def data(sizes: tuple[int, ...] = SIZES, **options: Any) -> FederatedData:
    """Unequal clients, each with an uneven share of the classes."""
    whole = dataset(n=sum(sizes), **options)
    order = np.argsort(whole.y.numpy() + 2.5 * Key.root(2).fold("mix").generator().random(len(whole)), kind="stable")
    return FederatedData(whole, Partition.of(np.split(order, np.cumsum(sizes)[:-1])))


def numbers(n_targets: int = 1) -> FederatedData:
    """The same with targets that are numbers: [N], or [N, D]."""
    whole = data()
    d = whole.dataset
    maps = torch.randn(d.x.shape[1], n_targets, generator=torch.Generator().manual_seed(0)) / 3
    y, test_y = (torch.tanh(x @ maps).squeeze(-1) for x in (d.x, d.test_x))
    return FederatedData(replace(d, y=y, test_y=test_y, n_classes=0), whole.partition)


def image_data(sizes: tuple[int, ...] = SIZES) -> FederatedData:
    """The same as images of one channel, 8 x 8."""
    flat = data(sizes, n_features=64)
    d = flat.dataset
    images = Dataset("tiny", d.x.view(-1, 1, 8, 8), d.y, d.test_x.view(-1, 1, 8, 8), d.test_y, CLASSES, kind="image")
    return FederatedData(images, flat.partition)


def network(federated: FederatedData, hidden: tuple[int, ...] = (6, 5)) -> Network:
    spec = f"mlp(hidden={list(hidden)})"
    return build(spec, federated.dataset.input_shape, federated.dataset.n_outputs, 0, Key.root(3).fold("init"))


def assignment(client: int, *, net: Network, epochs: float = 1.0, down: Any = None, **fields: Any) -> Assignment:
    """A task of round 1 that begins with the network's own weights."""
    given = {"floor": epochs, "partial": False, "lr": 0.1, "key": Key.root(0), "dials": {}, **fields}
    sent = NOTHING if down is None else Content(down)
    return Assignment(f"1.{client}", client, 1, Weights(net.initial()), sent, epochs=epochs, **given)


class Watched:
    """An executor that notes which tasks were trained together: ``Run(e, executor=Watched(executor_of(e)))``."""

    def __init__(self, inner: Executor) -> None:
        self.inner, self.name, self.device = inner, inner.name, inner.device
        self.batches: list[list[Assignment]] = []

    def submit(self, assignments: Sequence[Assignment], own: Own) -> Iterator[Finished | Failed]:
        self.batches.append(list(assignments))
        return self.inner.submit(assignments, own)

    def close(self) -> None:
        self.inner.close()


class OneByOne:
    """A layer of a fleet written for one client at a time."""

    def one(self, client: int, number: int, fate: Fate) -> Fate:
        raise NotImplementedError

    def __call__(self, clients: Any, number: int, fates: Fates) -> Fates:
        rows = [self.one(int(client), number, fates.row(i)) for i, client in enumerate(clients)]
        kind = Fates.kind(0)
        columns = zip(*rows, strict=True) if rows else ([] for _ in kind)
        return Fates(*(np.array(column, like.dtype) for column, like in zip(columns, kind, strict=True)))


class Affordable(OneByOne):
    """Client i can train only ``epochs[i]`` epochs in every round."""

    def __init__(self, epochs: dict[int, float]) -> None:
        self.epochs = epochs

    def one(self, client: int, number: int, fate: Fate) -> Fate:
        return fate._replace(affordable=self.epochs.get(client, float("inf")))


class Lost(OneByOne):
    """Updates of these (client, round) pairs are lost."""

    def __init__(self, *pairs: tuple[int, int]) -> None:
        self.pairs = set(pairs)

    def one(self, client: int, number: int, fate: Fate) -> Fate:
        return fate._replace(lost=(client, number) in self.pairs)


class Delay(OneByOne):
    """Updates of client i take ``seconds[i]`` longer."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds = seconds

    def one(self, client: int, number: int, fate: Fate) -> Fate:
        return fate._replace(delay=self.seconds.get(client, 0.0))


class DelayRounds(OneByOne):
    """Updates of these (client, round) pairs come so many rounds later."""

    def __init__(self, rounds: dict[tuple[int, int], int]) -> None:
        self.rounds = rounds

    def one(self, client: int, number: int, fate: Fate) -> Fate:
        return fate._replace(delay_rounds=self.rounds.get((client, number), 0))


class Present:
    """Who is there, by round."""

    def __init__(self, by_round: dict[int, list[int]]) -> None:
        self.by_round = by_round

    def __call__(self, number: int, now: float, here: Any) -> Any:
        if number not in self.by_round:
            return here
        there = np.zeros_like(here)
        there[self.by_round[number]] = True
        return here & there


def uneven_fleet(n: int = len(SIZES)) -> Fleet:
    """Devices up to six times apart, half of them limited, some of which cannot train as long as wanted."""
    speed = 1e6 * np.linspace(1, 6, n)
    fleet = Fleet.ideal(n, Key.root(4))
    limited = np.arange(n) % 2 == 0
    return fleet.with_(
        flops=speed, up=speed / 50, down=speed / 10, limited=limited, fortune=(Affordable({0: 1.2, 3: 0.7}),)
    )


def recipe(**changes: Any) -> Recipe:
    base: dict[str, Any] = {
        "rounds": 3,
        "cohort": 4,
        "epochs": 2.0,
        "batch_size": 4,
        "lr": 0.1,
        "seed": 5,
        "executor": "loop",
    }
    return Recipe(**{**base, **changes})


def experiment(
    method: Method | None = None,
    *,
    fleet: Fleet | None = None,
    federated: FederatedData | None = None,
    net: Network | None = None,
    problem: Problem | None = None,
    public: Data | None = None,
    **changes: Any,
) -> Experiment:
    """``public`` are samples that the server holds; ``changes`` are keys of the recipe."""
    federated = federated or data()
    given = Given(federated, net or network(federated), method, fleet, problem, public)
    return prepare(recipe(**changes), given)


def run(method: Method | None = None, **given: Any) -> Result:
    """Runs it in memory."""
    return Run(experiment(method, **given)).go()
