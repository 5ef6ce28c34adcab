"""What clients make of the generators they get: samples, labels, a balanced set (GANDALF, section 4.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.client.augment import Augment
from motley.core.errors import InputError
from motley.core.keys import Key, normal
from motley.core.types import Data
from motley.data.balance import Ints, amounts, farthest, lacking, shares, to_fill, wanted, without_surplus
from motley.runtime.gan_phase import Generators

CHUNK = 512  # samples generated at once
SAME = 1e-3  # share of the range below which samples do not differ

Label = Callable[[Tensor], Tensor]


class Made(NamedTuple):
    """What one client has beside its own samples."""

    x: Tensor  # [n, ...] as a network takes them
    y: Tensor  # [n]
    origin: Tensor  # [n] the generator; -1: static augmentation
    generated: int  # before the surplus was deleted


@dataclass(frozen=True)
class Plan:
    """How samples are made."""

    generators: Generators
    each: int  # J
    tau: float
    labels: str  # classifier, conditional, group
    label: Label | None  # of the classifier
    static: Augment | None
    limit: float
    key: Key

    def sample(self, m: int, n: int, key: Key, told: Tensor | None = None) -> Tensor:
        """``n`` samples of a generator: [n, ...]; ``told`` are classes, where it is conditional."""
        net, rows = self.generators.net, []
        tensors = net.layout.tensors(self.generators.params[m])
        classes = int(net.module.classes)  # type: ignore[arg-type]
        asked = torch.zeros(n, dtype=torch.int64) if told is None else told
        onehot = (asked[:, None] == torch.arange(classes)).to(torch.float32)
        with torch.no_grad():
            for begin in range(0, n, CHUNK):
                some = onehot[begin : begin + CHUNK]
                z = normal(key.fold(begin).tensor(), (len(some), int(net.module.latent)))  # type: ignore[arg-type]
                rows.append(net.piece(tensors, "generate", z, some))
        return torch.cat(rows) if rows else torch.zeros(0)

    def refuse_collapsed(self, name: str) -> None:
        """A generator that gives one sample whatever the noise is refused."""
        for m in range(len(self.generators)):
            some = self.sample(m, 64, self.key.fold("collapsed", m), torch.zeros(64, dtype=torch.int64))
            if not bool(torch.isfinite(some).all()) or float(some.std(0).mean()) < SAME * _reach(some):
                raise InputError(
                    f"Generator {m} of the phase '{name}' collapsed: it makes the same sample of all noise; let it "
                    "train longer, at lower rates or with another seed."
                )

    def for_client(self, client: int, own: Data, counts: NDArray[np.float64], known: NDArray[np.bool_]) -> Made:
        """Samples for one client, which has ``counts`` [C]; ``known``: classes that anybody has."""
        key = self.key.fold("client", client)
        mixes, lack = self.generators.counts, lacking(counts, known)
        chosen = farthest(mixes, counts, self.each)
        ordered = amounts(mixes[chosen], lack, self.tau)
        xs, ys, origins = [], [], []
        for m, n in zip(chosen, ordered.tolist(), strict=True):
            if n:
                x, y = self._labelled(m, n, key.fold("generator", m))
                xs.append(x)
                ys.append(y)
                origins.append(torch.full((n,), m))
        goal = wanted(lack, self.tau)
        x, y, origin = (torch.cat(parts) for parts in (xs, ys, origins)) if xs else _nothing(own)
        kept = torch.from_numpy(without_surplus(y.numpy(), goal))
        made = Made(x[kept], y[kept], origin[kept], len(y))
        return made if self.static is None else self._filled(made, own, goal, key)

    def _labelled(self, m: int, n: int, key: Key) -> tuple[Tensor, Tensor]:
        if self.labels == "classifier":
            assert self.label is not None
            x = self.sample(m, n, key)
            return x, self.label(x)
        mix = shares(self.generators.counts[m])
        told = torch.from_numpy(key.fold("classes").generator().choice(len(mix), n, p=mix))
        return self.sample(m, n, key, told if self.labels == "conditional" else None), told

    def _filled(self, made: Made, own: Data, goal: Ints, key: Key) -> Made:
        """With changed copies of what there is of each class, where generators gave too little."""
        assert self.static is not None
        pool_x, pool_y = torch.cat([own.x, made.x]), torch.cat([own.y, made.y])
        have = np.bincount(made.y.numpy(), minlength=len(goal))
        fill = to_fill(goal - have, np.bincount(pool_y.numpy(), minlength=len(goal)), self.limit)
        places = []
        for c in np.flatnonzero(fill):
            source = np.flatnonzero(pool_y.numpy() == c)
            order = key.fold("static", int(c)).generator().permutation(source)
            places.append(np.resize(order, fill[c]))
        if not places:
            return made
        rows = torch.from_numpy(np.concatenate(places))
        x = self.static(pool_x[rows], key.fold("changes").tensor(), 0)
        origin = torch.full((len(rows),), -1)
        return made._replace(
            x=torch.cat([made.x, x]), y=torch.cat([made.y, pool_y[rows]]), origin=torch.cat([made.origin, origin])
        )


def _nothing(own: Data) -> tuple[Tensor, Tensor, Tensor]:
    return own.x[:0], own.y[:0], torch.zeros(0, dtype=torch.int64)


def _reach(x: Tensor) -> float:
    return max(1e-6, float(x.abs().max()))
