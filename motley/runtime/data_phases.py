"""Phases that change clients' data without generators: what GANDALF is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from motley.client.augment import Augment, make_augment
from motley.core.errors import DataError, InputError
from motley.core.files import write_json
from motley.core.keys import Key
from motley.core.ranges import NotNegative, PositiveShare
from motley.data.balance import lacking, wanted
from motley.runtime.experiment import Experiment, Given, prepare
from motley.runtime.generate_phase import STATIC, with_samples
from motley.runtime.generation import Made
from motley.runtime.launch import Listening
from motley.runtime.recipe import Recipe, load
from motley.runtime.world import PHASES, Phase, World, given_of

Counts = NDArray[np.float64]
Ints = NDArray[np.int64]
More = Callable[[Experiment, Key], list[Made]]


class DataPhase:
    """Gives every client further samples, the same whenever it is carried out."""

    def __init__(self, name: str, recipe: Recipe, more: More) -> None:
        self.name, self.recipe, self.more = name, recipe, more

    def check(self, given: Given, earlier: Mapping[str, Phase]) -> None:
        """Refuses what cannot be run."""
        if self.recipe.skew:
            raise InputError(f"The phase '{self.name}' cannot give samples to clients with skew={self.recipe.skew}.")
        e = prepare(load(self.recipe, {"initial": None}), given)
        if not e.dataset.n_classes:
            raise DataError(
                f"The phase '{self.name}' needs classes, and the targets of '{e.dataset.name}' are numbers."
            )

    def run(self, world: World, folder: Path | None, listeners: Listening) -> World:
        e = prepare(load(self.recipe, {"initial": None}), given_of(world))
        made = self.more(e, Key.root(self.recipe.seed).fold("data phase"))
        total = [len(one.y) for one in made]
        size = e.dataset.x[0].numel() * e.dataset.x.element_size()
        summary = {"added": sum(total), "samples_per_client": total, "bytes_stored": sum(total) * size}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "summary.json", summary)
        return world._replace(data=with_samples(e.data, made), made={**world.made, self.name: summary})


def real(e: Experiment, rows: Ints) -> Made:
    """Training samples as they are."""
    index = torch.from_numpy(rows)
    x, y = e.dataset.inputs(e.dataset.x[index]), e.dataset.y[index]
    return Made(x, y, torch.full((len(rows),), -1), len(rows))


def copies(e: Experiment, client: int, counts: Ints, static: Augment | None, key: Key) -> Made:
    """Changed copies of a client's own samples, so many of each class [C]."""
    own = e.data.partition[client]
    y = e.dataset.y.numpy()[own]
    rows = [np.resize(own[y == c], counts[c]) for c in np.flatnonzero(counts)]
    made = real(e, np.concatenate(rows) if rows else np.zeros(0, np.int64))
    if static is None or not len(made.y):
        return made
    return made._replace(x=static(made.x, key.fold("changes", client).tensor(), 0))


def _own_copies(e: Experiment, factor: Callable[[Counts], Counts], changes: str, key: Key) -> list[Made]:
    """For each client copies of its samples: ``factor`` of its counts [C] times as many."""
    static = make_augment(changes, e.dataset) if changes else None
    table = e.data.labels.astype(np.float64)
    orders = [np.rint(factor(row) * row).astype(np.int64) for row in table]
    return [copies(e, k, order, static, key) for k, order in enumerate(orders)]


@PHASES.add(hidden=("name", "recipe"))
def share_data(name: str, recipe: Recipe, fraction: PositiveShare = 0.2, portion: PositiveShare = 0.2) -> Phase:
    """A shared set of ``fraction`` of all samples, even over classes; each client gets a random ``portion`` of it.

    Data-sharing strategy (Zhao et al. 2018), as GANDALF is compared with it.
    """

    def more(e: Experiment, key: Key) -> list[Made]:
        y, rng = e.dataset.y.numpy(), key.generator()
        held = np.unique(e.data.partition.index)
        each = int(fraction * len(held)) // e.dataset.n_classes
        members = [held[y[held] == c] for c in range(e.dataset.n_classes)]
        shared = np.concatenate([rng.permutation(some)[:each] for some in members])
        n = int(portion * len(shared))
        return [real(e, np.sort(rng.permutation(shared)[:n])) for _ in range(e.data.n_clients)]

    return DataPhase(name, recipe, more)


@PHASES.add(hidden=("name", "recipe"))
def real_samples(name: str, recipe: Recipe, tau: PositiveShare = 0.5) -> Phase:
    """Every client gets other clients' samples in place of generated ones: ``tau`` of what it lacks of each class."""

    def more(e: Experiment, key: Key) -> list[Made]:
        y, index = e.dataset.y.numpy(), np.unique(e.data.partition.index)
        table = e.data.labels.astype(np.float64)
        known = table.sum(0) > 0
        made = []
        for k, counts in enumerate(table):
            others, rng = np.setdiff1d(index, e.data.partition[k]), key.fold("client", k).generator()
            goal = wanted(lacking(counts, known), tau)
            rows = [rng.permutation(others[y[others] == c])[:most] for c, most in enumerate(goal)]
            made.append(real(e, np.concatenate(rows)))
        return made

    return DataPhase(name, recipe, more)


@PHASES.add(hidden=("name", "recipe"))
def copy_minorities(name: str, recipe: Recipe, factor: NotNegative = 1.0, static: str = STATIC) -> Phase:
    """Every client doubles (``factor=1``: as many copies as samples) its classes of fewer samples than on average.

    Static augmentation, as GANDALF is compared with it; ``static`` are the changes of the copies.
    """

    def more(e: Experiment, key: Key) -> list[Made]:
        def few(counts: Counts) -> Counts:
            return np.where(counts < counts.mean(), factor, 0.0)

        return _own_copies(e, few, static, key)

    return DataPhase(name, recipe, more)


@PHASES.add(hidden=("name", "recipe"))
def copy_by_z_score(
    name: str, recipe: Recipe, threshold: NotNegative = 0.0, alpha: NotNegative = 0.67, static: str = STATIC
) -> Phase:
    """Clients copy samples of classes that are rare in the whole federation (Astraea; then train with mediators).

    A class whose count has a z-score among all classes below ``-threshold`` gets ``(mean / count)^alpha - 1`` changed
    copies for each sample. Our reading of "Z-score-based": the classes' counts are those of all clients together.
    """

    def more(e: Experiment, key: Key) -> list[Made]:
        counts = e.data.labels.sum(0).astype(np.float64)
        spread = counts.std()
        z = (counts - counts.mean()) / spread if spread > 0 else np.zeros_like(counts)
        rare = (z < -threshold) & (counts > 0)
        factor = np.where(rare, (counts.mean() / np.maximum(counts, 1.0)) ** alpha - 1, 0.0)
        return _own_copies(e, lambda _: factor, static, key)

    return DataPhase(name, recipe, more)
