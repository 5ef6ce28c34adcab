"""The device of an executor, and the data on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch

from motley.core.errors import InputError
from motley.data.dataset import tensors_to
from motley.data.federated import FederatedData

SCALED_BYTES = {"cpu": 1 << 30, "cuda": 1 << 32}  # training sets up to this size are kept as float32


def pick(device: str) -> str:
    """``auto`` is a GPU where there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    if not device.startswith("cuda"):
        raise InputError(f"There is no device '{device}' for training; take cpu, cuda or auto.")
    if not torch.cuda.is_available():
        raise InputError(f"The device '{device}' was asked for, but torch finds no CUDA device; take cpu or auto.")
    return device


@contextmanager
def precision(name: str, inner: AbstractContextManager[object] | None = None) -> Iterator[None]:
    """Products on a GPU as a run's precision says, inside the block; the process's own setting comes back after it."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = name != "float32"
    try:
        with inner or nullcontext():
            yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def moved(data: FederatedData, device: torch.device) -> FederatedData:
    """The data with its training samples, and what changes them, on a device.

    Samples are scaled beforehand, where they are not too large.
    """
    dataset = data.dataset
    placed = replace(
        dataset, x=dataset.x.to(device), y=dataset.y.to(device), scaling=tensors_to(dataset.scaling, device)
    )
    if dataset.scaling is not None and 4 * dataset.x.numel() <= SCALED_BYTES[device.type]:
        placed = replace(placed, x=placed.inputs(placed.x), scaling=None)
    return replace(data, dataset=placed, transforms=tuple(tensors_to(one, device) for one in data.transforms))
