"""Whose statistics scale the inputs: a choice that a recipe makes (``scale=``), never a silent one.

own         as the data set does: Motley's own are scaled by their training samples, given data are left as they are
none        inputs as they are
pooled      mean 0 and deviation 1 over all training samples of all clients: a simulation's privilege, no server has it
per_client  every client by the statistics of its own samples; the held-out samples by theirs, as one more site
public      by the samples that the server holds (``public=``)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from motley.core.errors import DataError
from motley.core.types import Data
from motley.data.dataset import Dataset, Scaling, Tokens
from motley.data.federated import FederatedData
from motley.data.split import materialise

FLAT = 1e-7  # a deviation below this share of the mean is rounding: such a column is constant
CHUNK = 65536


def statistics(x: Tensor) -> Scaling:
    """The scaling to mean 0 and deviation 1 over samples [N, ...], per column or colour channel."""
    width, counted = x.shape[1], 0
    total, square = torch.zeros(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
    for part in x.split(CHUNK):
        flat = part.reshape(len(part), width, -1).double()
        total += flat.sum((0, 2))
        square += (flat**2).sum((0, 2))
        counted += len(part) * flat.shape[2]
    mean, std = _moments(total, square, torch.tensor(float(counted)))
    shape = (width, *[1] * (x.dim() - 2))
    return Scaling(1.0, mean.reshape(shape), std.reshape(shape))


def _moments(total: Tensor, square: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Means and deviations from sums and sums of squares; the deviation of what is constant is 1."""
    counted = counted.clamp_min(1.0)  # a client may hold nothing
    mean = total / counted
    std = (square / counted - mean**2).clamp_min(0).sqrt()
    std = torch.where(std > FLAT * mean.abs(), std, torch.ones_like(std))
    return mean.float(), std.float()


def standardise(dataset: Dataset) -> Dataset:
    """Mean 0 and deviation 1 over all training samples, per column or colour channel."""
    _need_numbers(dataset)
    return replace(dataset, scaling=statistics(dataset.x), scaled="pooled")


def unscaled(how: str, dataset: Dataset) -> Dataset:
    """The data set with its inputs as they are, where a scaling is chosen; else as it came."""
    if how == "own":
        return dataset
    _need_numbers(dataset)
    return replace(dataset, scaling=Scaling(), scaled=how)


def scaled(how: str, dataset: Dataset, public: Data | None) -> tuple[Dataset, Data | None]:
    """An unscaled data set, and what the server holds, by statistics that are known before clients are made."""
    if how in ("own", "none"):
        return dataset, public
    if how == "public" and public is None:
        raise DataError(
            "scale=public takes the statistics of samples that the server holds, but it holds none; say where they "
            "come from, such as public='held(fraction=0.02)', or choose scale=per_client."
        )
    if how == "per_client":  # the server is a site of its own
        return dataset, None if public is None else Data(statistics(public.x)(public.x), public.y)
    scaling = statistics(dataset.x if how == "pooled" or public is None else public.x)
    return replace(dataset, scaling=scaling), None if public is None else Data(scaling(public.x), public.y)


@dataclass(frozen=True)
class OwnScaling:
    """Every client's inputs by its own mean and deviation."""

    mean: Tensor  # [M, D] or [M, C, 1, 1]
    std: Tensor

    def __call__(self, x: Tensor, y: Tensor, clients: Tensor) -> tuple[Tensor, Tensor]:
        return (x - self.mean.to(x.device)[clients]) / self.std.to(x.device)[clients], y


def each_by_itself(data: FederatedData) -> FederatedData:
    """Every client's samples by their own statistics, and the held-out ones by theirs, once and for all."""
    made = materialise(replace(data, transforms=(_own(data), *data.transforms)))
    judged = as_one_site(data.dataset)
    return replace(made, dataset=replace(made.dataset, test_x=judged.test_x, stored=judged.stored, scaled="per_client"))


def as_one_site(dataset: Dataset) -> Dataset:
    """The held-out samples by their own statistics, where every client has its own; else as they are."""
    if dataset.scaled != "per_client" or dataset.scaling is None:
        return dataset
    judged = statistics(dataset.test_x) if len(dataset.test_x) else None
    test_x = judged(dataset.test_x) if judged is not None else dataset.inputs(dataset.test_x)
    return replace(dataset, test_x=test_x, scaling=None, stored=judged)


def scaled_apart(how: str, data: FederatedData) -> FederatedData:
    """Data that came divided among clients, scaled as asked unless they are so already."""
    if how in ("own", data.dataset.scaled):
        return data
    dataset, _ = scaled(how, unscaled(how, data.dataset), None)
    own = data.own_tests
    if own is not None:  # each client's own test samples go the way of its training samples
        moved = (_own(replace(data, dataset=dataset)),) if how == "per_client" else ()
        tests = replace(own.dataset, scaling=dataset.scaling, scaled=how)
        own = replace(own, dataset=tests, transforms=(*moved, *own.transforms))
    made = replace(data, dataset=dataset)
    return replace(each_by_itself(made) if how == "per_client" else made, own_tests=own)


def _own(data: FederatedData) -> OwnScaling:
    m, width = data.n_clients, data.dataset.input_shape[0]
    total, square = torch.zeros(m, width, dtype=torch.float64), torch.zeros(m, width, dtype=torch.float64)
    owner = torch.from_numpy(np.repeat(np.arange(m), data.sizes))
    for who, rows in zip(owner.split(CHUNK), torch.from_numpy(data.partition.index).split(CHUNK), strict=True):
        x = data.dataset.x[rows].reshape(len(rows), width, -1).double()
        total.index_add_(0, who, x.sum(-1))
        square.index_add_(0, who, (x**2).sum(-1))
    each = data.dataset.x[0].numel() // width
    mean, std = _moments(total, square, torch.from_numpy(data.sizes * float(each))[:, None])
    shape = (m, width, *[1] * (len(data.dataset.input_shape) - 1))
    return OwnScaling(mean.reshape(shape), std.reshape(shape))


def _need_numbers(dataset: Dataset) -> None:
    if isinstance(dataset.scaling, Tokens) or dataset.kind == "text":
        raise DataError(f"'{dataset.name}' holds tokens, which cannot be scaled; leave out 'scale'.")
