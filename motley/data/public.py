"""Samples that the server holds: taken out of training, or out of the test set, so that no client trains on them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.core.errors import DataError, InputError
from motley.core.keys import Key
from motley.core.ranges import PositiveShare
from motley.core.registry import Registry, parse
from motley.core.types import Data
from motley.data.dataset import Dataset
from motley.data.split import stratified


class Shared(NamedTuple):
    """What is left for training and testing, and what the server holds."""

    dataset: Dataset
    public: Data


PUBLIC: Registry[Shared] = Registry("public source")
"""Factories ``f(dataset, key, **arguments) -> Shared``; one's own: ``@PUBLIC.add(hidden=("dataset", "key"))``."""


def set_public_aside(spec: str | None, dataset: Dataset, key: Key) -> tuple[Dataset, Data | None]:
    """The data set without the samples that the server holds, and these."""
    if spec is None:
        return dataset, None
    calls = parse(spec, "public source")
    if len(calls) != 1:
        raise InputError(f"A run has one public source, but '{spec}' names {len(calls)}.")
    made = PUBLIC.make(calls[0].name, dataset, key.fold("public"), **calls[0].arguments)
    return made.dataset, made.public


@PUBLIC.add(hidden=("dataset", "key"))
def held(dataset: Dataset, key: Key, fraction: PositiveShare = 0.02) -> Shared:
    """A share of every class is taken out of the training samples before these are divided among clients."""
    chosen = _chosen(dataset, dataset.y.numpy(), fraction, key)
    left = replace(
        dataset,
        x=dataset.x[~chosen],
        y=dataset.y[~chosen],
        groups={name: ids[~chosen] for name, ids in dataset.groups.items()},
    )
    return Shared(left, Data(dataset.inputs(dataset.x[chosen]), dataset.y[chosen]))


@PUBLIC.add("test", hidden=("dataset", "key"))
def from_test(dataset: Dataset, key: Key, fraction: PositiveShare = 0.1) -> Shared:
    """A share of every class is taken out of the test samples; models are judged on the others."""
    chosen = _chosen(dataset, dataset.test_y.numpy(), fraction, key)
    left = replace(
        dataset,
        test_x=dataset.test_x[~chosen],
        test_y=dataset.test_y[~chosen],
        test_groups={name: ids[~chosen] for name, ids in dataset.test_groups.items()},
    )
    return Shared(left, Data(dataset.inputs(dataset.test_x[chosen]), dataset.test_y[chosen]))


def _chosen(dataset: Dataset, y: NDArray[np.int64], fraction: float, key: Key) -> Tensor:
    chosen = torch.from_numpy(stratified(y, fraction, key.generator()))
    if not bool(chosen.any()) or bool(chosen.all()):
        raise DataError(
            f"A public share of {fraction:g} of the samples of '{dataset.name}' leaves nothing on one side; "
            "choose another fraction."
        )
    return chosen


def balanced(public: Data, n_classes: int, per_class: int, key: Key) -> Data:
    """``per_class`` random public samples of every class."""
    y = public.y.cpu().numpy()
    rng = key.fold("balanced").generator()
    rows = []
    for c in range(n_classes):
        members = np.flatnonzero(y == c)
        if len(members) < per_class:
            raise DataError(
                f"There are {len(members)} public samples of class {c}, fewer than the {per_class} wanted; "
                "raise the fraction of public samples."
            )
        rows.append(rng.choice(members, per_class, replace=False))
    index = torch.from_numpy(np.sort(np.concatenate(rows)))
    return Data(public.x[index], public.y[index])
