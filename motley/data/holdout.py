"""What is held out of training, by name: how a recipe's ``split`` sets validation and test samples aside.

A split is a factory ``f(dataset, make, fold, key, **arguments) -> Divided`` where ``make`` divides a data set among
clients. Without a split, models are judged on the data set's own test samples, and there is no validation part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from motley.core.errors import PartitionError
from motley.core.keys import Key
from motley.core.registry import Registry, parse
from motley.data import split
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData

Make = Callable[[Dataset], FederatedData]


class Divided(NamedTuple):
    """The clients that train, with the samples models are judged on as test set; and those settings are chosen on."""

    data: FederatedData
    validation: Dataset | None  # its test set holds the validation samples


SPLITS: Registry[Divided] = Registry("split")
HIDDEN = ("dataset", "make", "fold", "key")


def divide(spec: str | None, dataset: Dataset, make: Make, fold: int, key: Key) -> Divided:
    """Clients and held-out samples after a split's short form; None: the data set's own test samples."""
    if spec is None:
        return Divided(make(dataset), None)
    calls = parse(spec, "split")
    if len(calls) != 1:
        raise PartitionError(f"A run has one split, but '{spec}' names {len(calls)}.")
    return SPLITS.make(calls[0].name, dataset, make, fold, key.fold("split"), **calls[0].arguments)


@SPLITS.add(hidden=HIDDEN)
def by_clients(
    dataset: Dataset, make: Make, fold: int, key: Key, folds: int = 5, inner: bool = False, pool: bool = True
) -> Divided:
    """Some clients train, others validate, others test; cross-validated over ``fold`` (RADFed, IV-C).

    Fold i tests on set i of ``folds`` and validates on the next one; with ``inner`` every other set validates in turn,
    so there are folds * (folds - 1). ``pool`` gives the data set's own test samples to clients as well.
    """
    data = make(split.pooled(dataset) if pool else dataset)
    if data.transforms:
        data = split.materialise(data)
    every = split.client_folds(data.n_clients, key, folds, inner)
    if not 0 <= fold < len(every):
        raise PartitionError(f"fold is {fold}, but this split has {len(every)} of them: 0..{len(every) - 1}.")
    chosen = every[fold]
    validation = split.by_clients(data, chosen.train, chosen.validation).dataset
    return Divided(split.by_clients(data, chosen.train, chosen.test), validation)


@SPLITS.add(hidden=HIDDEN)
def by_samples(dataset: Dataset, make: Make, fold: int, key: Key, fraction: float = 0.2) -> Divided:
    """A stratified part of the training samples validates; the data set's own test samples test.

    Another ``fold`` draws another part.
    """
    validation = split.by_samples(dataset, fraction, key.fold(fold))
    train = replace(validation, test_x=dataset.test_x, test_y=dataset.test_y, test_groups=dataset.test_groups)
    return Divided(make(train), validation)


@SPLITS.add(hidden=HIDDEN)
def within_clients(
    dataset: Dataset, make: Make, fold: int, key: Key, validation: float = 0.1, test: float = 0.1, pool: bool = False
) -> Divided:
    """A part of every client's samples validates, another tests, as the client sees them.

    With ``test`` 0 the data set's own test samples test. Another ``fold`` draws other parts.
    """
    data = make(split.pooled(dataset) if pool else dataset)
    if data.transforms:
        data = split.materialise(data)
    shares = (1.0 - validation - test, validation, *((test,) if test else ()))
    parts = split.within_clients(data.partition, shares, key.fold(fold))
    judged = split.judged_on(data.dataset, torch.from_numpy(parts[2].index)) if test else data.dataset
    return Divided(FederatedData(judged, parts[0]), split.judged_on(data.dataset, torch.from_numpy(parts[1].index)))
