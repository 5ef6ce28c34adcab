"""A data set divided among clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.core.errors import PartitionError
from motley.core.keys import fold_in
from motley.core.types import Data
from motley.core.vmapped import is_vmapped
from motley.data.dataset import Dataset
from motley.data.rereading import WORD, arrange, seeded


@dataclass(frozen=True)
class Partition:
    """Which training samples each client holds: client i has ``index[offsets[i]:offsets[i + 1]]``."""

    index: NDArray[np.int64]
    offsets: NDArray[np.int64]
    shared: bool = False  # True where a sample may belong to several clients
    clusters: NDArray[np.int64] | None = None  # cluster of each client, where the partition makes them

    @classmethod
    def of(cls, parts: Sequence[NDArray[np.int64]], **rest: object) -> Partition:
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        index = np.concatenate(parts).astype(np.int64) if len(parts) else np.zeros(0, np.int64)
        return cls(index, offsets, **rest)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        if len(self.offsets) < 2:
            raise PartitionError("A partition needs at least one client.")
        if len(self.index) == 0:
            raise PartitionError("No client of this partition holds a sample.")

    @property
    def some_empty(self) -> bool:
        """Whether clients hold no sample."""
        return bool((self.sizes <= 0).any())

    def refuse_empty(self) -> None:
        """Refuses clients without samples."""
        if self.some_empty:
            empty = np.flatnonzero(self.sizes <= 0)
            raise PartitionError(
                f"Client {int(empty[0])} would get no sample ({len(empty)} of {self.n_clients} clients); use fewer "
                "clients or a milder partition, or let them be with empty_clients=allow."
            )

    @property
    def n_clients(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def size(self, client: int) -> int:
        """Samples of one client."""
        return int(self.offsets[client + 1] - self.offsets[client])

    def __getitem__(self, client: int) -> NDArray[np.int64]:
        return self.index[self.offsets[client] : self.offsets[client + 1]]


class ClientTransform(Protocol):
    """A change of one client's samples (feature skew, concept shift, own standardisation), pure and vectorised.

    ``clients`` [B] says whose sample each row is; inputs are as the network takes them. A transform that changes labels
    has ``moves_labels = True``. One that must know which training sample each row is (to draw the same noise every
    time) has ``by_row = True`` and gets the samples' numbers [B] as a fourth argument.
    """

    def __call__(self, x: Tensor, y: Tensor, clients: Tensor) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class FederatedData:
    """A data set, who holds which of its training samples, and how each client's samples are changed."""

    dataset: Dataset
    partition: Partition
    transforms: tuple[ClientTransform, ...] = field(default=())
    own_tests: FederatedData | None = None  # samples of each client's that it is judged on and does not train on

    @property
    def n_clients(self) -> int:
        return self.partition.n_clients

    @property
    def n_classes(self) -> int:
        return self.dataset.n_classes

    @property
    def sizes(self) -> NDArray[np.int64]:
        return self.partition.sizes

    @property
    def labels(self) -> NDArray[np.int32]:
        """Samples per client and class, as the clients see their labels: [M, C]."""
        return self._label_table.astype(np.int32)

    def labels_of(self, clients: int | list[int]) -> NDArray[np.integer[Any]]:
        """One or several rows of `labels`, in a smaller type."""
        rows: NDArray[np.integer[Any]] = self._label_table[clients]
        return rows

    @cached_property
    def _label_table(self) -> NDArray[np.integer[Any]]:
        """`labels` in the smallest type that holds it: a million clients take ten bytes each, not forty."""
        if not self.n_classes:
            return np.zeros((self.n_clients, 0), np.uint8)
        owner = np.repeat(np.arange(self.n_clients), self.sizes)
        y = self.dataset.y.numpy()[self.partition.index]
        if self.transforms:
            rows = torch.from_numpy(self.partition.index)
            x = torch.zeros(len(rows), *([1] * len(self.dataset.input_shape)))
            label = torch.from_numpy(y)
            for transform in self.transforms:
                if getattr(transform, "moves_labels", False):
                    _, label = transform(x, label, torch.from_numpy(owner))
            y = label.numpy()
        flat = np.bincount(owner * self.n_classes + y, minlength=self.n_clients * self.n_classes)
        largest = int(flat.max())
        small = next(kind for kind in (np.uint8, np.int16, np.int32) if largest <= np.iinfo(kind).max)
        return flat.reshape(self.n_clients, self.n_classes).astype(small)

    def gather(self, rows: Tensor, clients: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the given training samples as the given clients see them; all on the data's device."""
        x, y = self.dataset.x, self.dataset.y
        if rows.dim() == 1 and rows.device.type == "cpu" and not is_vmapped(rows):
            x, y = x.index_select(0, rows), y.index_select(0, rows)  # on a CPU several times faster than indexing
        else:
            x, y = x[rows], y[rows]
        return self._changed(self.dataset.inputs(x), y, clients, rows)

    def _changed(self, x: Tensor, y: Tensor, clients: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Samples as their clients see them."""
        for transform in self.transforms:
            given = (x, y, clients, rows) if getattr(transform, "by_row", False) else (x, y, clients)
            x, y = transform(*given)
        return x, y

    def client(self, client: int) -> Data:
        """All samples of one client, ready for its network."""
        rows = torch.from_numpy(self.partition[client])
        x, y = self.gather(rows, torch.full((len(rows),), client))
        return Data(x, y) if self.dataset.source is None else Reread(self, client, x, y)

    def read_again(self, client: int, seed: int) -> Data:
        """All samples of one client, those that change read anew."""
        source, dataset, rows = self.dataset.source, self.dataset, self.partition[client]
        assert source is not None
        x, y = dataset.x[torch.from_numpy(rows)], dataset.y[torch.from_numpy(rows)]
        with seeded(seed):
            found = [(k, fresh) for k, row in enumerate(rows) if (fresh := source.read(int(row))) is not None]
        if found:
            x, y = x.clone(), y.clone()
            where = torch.tensor([k for k, _ in found])
            x[where] = arrange(torch.from_numpy(np.stack([one for _, (one, _) in found])), dataset.arranged).to(x.dtype)
            y[where] = torch.from_numpy(np.stack([one for _, (_, one) in found])).reshape(y[where].shape).to(y.dtype)
        return Data(*self._changed(dataset.inputs(x), y, torch.full((len(rows),), client), torch.from_numpy(rows)))


class Reread(Data):
    """A client's samples, read anew in every epoch; as they were first read for whatever looks at them besides."""

    def __init__(self, data: FederatedData, client: int, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y)
        self._from, self._client = data, client

    def again(self, key: Tensor, epoch: int) -> Data:
        return self._from.read_again(self._client, int(fold_in(fold_in(key, WORD), epoch)))
