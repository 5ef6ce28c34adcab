"""Who takes part in a deployment: seats, who sits there, and what they told of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.core.errors import InputError
from motley.core.types import Tree
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData, Partition


@dataclass(frozen=True)
class Seat:
    """One client of the federation, as its agent described itself when it joined."""

    name: str
    public_key: str
    n: int  # training samples
    labels: tuple[float, ...] = ()  # samples per class; empty where it does not tell
    seconds_per_epoch: float = 0.0  # 0: it has not measured
    flops: float = 0.0
    limited: bool = False
    invitation: str = ""  # with which it came

    def to_tree(self) -> dict[str, Any]:
        return {**asdict(self), "labels": list(self.labels)}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Seat:
        return cls(**{**tree, "labels": tuple(tree["labels"])})


@dataclass
class Roster:
    """The seats of a federation, taken or free."""

    n_seats: int
    seats: dict[int, Seat] = field(default_factory=dict)
    evicted: set[int] = field(default_factory=set)

    def sit(self, number: int, seat: Seat) -> None:
        self.seats[number] = seat
        self.evicted.discard(number)

    def evict(self, number: int) -> None:
        self.evicted.add(number)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each seat [N]; 1 where nobody sits yet."""
        return np.array([self.seats[i].n if i in self.seats else 1 for i in range(self.n_seats)], np.int64)

    @property
    def limited(self) -> NDArray[np.bool_]:
        return np.array([i in self.seats and self.seats[i].limited for i in range(self.n_seats)], bool)

    @property
    def quickest(self) -> float:
        """Operations per second of the fastest device that was told of; 0: nobody has told."""
        return max((seat.flops for seat in self.seats.values()), default=0.0)

    @property
    def labels(self) -> Tensor | None:
        """Samples per class of each seat [N, C]; None where not all have told."""
        told = [self.seats[i].labels if i in self.seats else () for i in range(self.n_seats)]
        same = len({len(row) for row in told}) == 1 and bool(told[0])
        return torch.tensor(told, dtype=torch.float32) if same else None

    def profile(self, epochs: float) -> Tensor | None:
        """Seconds a task of each seat takes [N], as agents measured; None where not all have."""
        told = [self.seats[i].seconds_per_epoch if i in self.seats else 0.0 for i in range(self.n_seats)]
        return torch.tensor(told, dtype=torch.float32) * epochs if all(told) else None

    def to_tree(self) -> Tree:
        return {
            "n_seats": self.n_seats,
            "seats": {str(number): seat.to_tree() for number, seat in self.seats.items()},
            "evicted": sorted(self.evicted),
        }

    @classmethod
    def from_tree(cls, tree: Tree) -> Roster:
        seats = {int(number): Seat.from_tree(seat) for number, seat in tree["seats"].items()}
        return cls(tree["n_seats"], seats, set(tree["evicted"]))


class ToldData(FederatedData):
    """Clients' data as the server of a deployment knows them: how many samples, perhaps of which classes, and no more.

    The data set holds the server's own test samples.
    """

    @classmethod
    def of(cls, dataset: Dataset, roster: Roster) -> ToldData:
        offsets = np.concatenate([[0], np.cumsum(roster.sizes)])
        nowhere = np.broadcast_to(np.zeros(1, np.int64), (int(offsets[-1]),))  # which samples these are nobody tells
        made = cls(dataset, Partition(nowhere, offsets))
        table = np.zeros((roster.n_seats, dataset.n_classes), np.int32)
        for number, seat in roster.seats.items():
            if len(seat.labels) == dataset.n_classes:
                table[number] = seat.labels
        object.__setattr__(made, "_told", table)
        return made

    def labels_of(self, clients: int | list[int]) -> NDArray[np.integer[Any]]:
        told: NDArray[np.integer[Any]] = self.__dict__["_told"]
        return told[clients]

    def gather(self, rows: Tensor, clients: Tensor) -> tuple[Tensor, Tensor]:
        raise InputError("The server of a deployment has no samples of clients; leave out what would look at them.")
