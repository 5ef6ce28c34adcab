"""What data must be before anything is trained on them; what is wrong is told by its place."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from motley.core.errors import DataError
from motley.data.federated import FederatedData

CHUNK = 1 << 16


def bad_place(x: Tensor) -> tuple[int, tuple[int, ...]] | None:
    """The row and the place within it of the first number that is not finite; None where all are."""
    if not x.is_floating_point():
        return None
    for number, part in enumerate(x.split(CHUNK)):
        fine = torch.isfinite(part)
        if not bool(fine.all()):
            first = [int(i) for i in (~fine).nonzero()[0]]
            return number * CHUNK + first[0], tuple(first[1:])
    return None


def check_finite(x: Tensor, what: str, of: str = "") -> None:
    """Refuses numbers that are NaN or infinite, with the row and column of the first one."""
    found = bad_place(x)
    if found is None:
        return
    row, place = found
    column = "" if not place else f", column {place[0]}" if len(place) == 1 else f", at {place}"
    number = float(x[(row, *place)])
    value = "NaN" if math.isnan(number) else "infinity"
    rows = int((~torch.isfinite(x.reshape(len(x), -1)).all(1)).sum())
    raise DataError(
        f"The {what}{of} hold {value} in row {row}{column} ({rows} of {len(x)} rows hold "
        "such); mend or remove those rows."
    )


def check_given(data: FederatedData) -> None:
    """Refuses data on which no model can be trained or judged: numbers that are not finite, and no test samples."""
    dataset = data.dataset
    if not len(dataset.test_y):
        raise DataError(
            f"The data set '{dataset.name}' has no test samples, so no model could be judged; set some aside "
            "(test=0.2, or split='by_samples'), or give some (test=(x, y))."
        )
    check_finite(dataset.test_x, "test inputs")
    check_finite(dataset.test_y, "test targets")
    for what, values in (("inputs", dataset.x), ("targets", dataset.y)):
        if bad_place(values) is not None:
            _by_client(data, what, values)


def _by_client(data: FederatedData, what: str, values: Tensor) -> None:
    """As `check_finite`, by the clients that hold the samples."""
    bad = ~torch.isfinite(values.reshape(len(values), -1)).all(1).numpy()
    held = np.flatnonzero(bad[data.partition.index])
    if len(held):
        client = int(np.searchsorted(data.partition.offsets, held[0], side="right")) - 1
        check_finite(values[torch.from_numpy(data.partition[client])], what, f" of client {client}")


def settled(data: FederatedData) -> FederatedData:
    """Data whose samples are read anew in every epoch know from where; refused where rows were chosen or changed."""
    source = data.dataset.source
    if source is None or source.first is None:
        return data
    if source.first is not data.dataset.x:
        raise DataError(
            f"Items of '{data.dataset.name}' change at random with every reading, so none can be set aside or scaled "
            "once and for all (public, split, scale=per_client); hold them as first read: from_torch(data, "
            "reread=False)."
        )
    return replace(data, dataset=replace(data.dataset, source=replace(source, first=None)))


def check_alike(shapes: list[tuple[int, ...]], what: str) -> None:
    """Refuses clients whose samples differ in shape; what is empty may have none."""
    known = [(client, shape) for client, shape in enumerate(shapes) if shape != ()] or [(0, ())]
    first, wanted = known[0]
    for client, shape in known:
        if shape != wanted:
            raise DataError(
                f"Client {client} has {what} of shape {shape} per sample, client {first} of {wanted}; "
                "all clients need the same columns."
            )
