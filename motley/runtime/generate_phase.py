"""A phase in which clients balance their data with samples of generators (GANDALF, phase 2)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.client.augment import make_augment
from motley.core.errors import InputError, RecipeError
from motley.core.files import write_bytes, write_json
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.ranges import Count, NotNegative, PositiveShare
from motley.data.dataset import Dataset, Scaling
from motley.data.federated import FederatedData, Partition
from motley.nets.cost import cost_of
from motley.runtime.experiment import Experiment, Given, flat_model, prepare
from motley.runtime.folders import read_summary
from motley.runtime.gan_phase import GanPhase, Generators
from motley.runtime.generation import Made, Plan
from motley.runtime.launch import Listening
from motley.runtime.recipe import Recipe, load
from motley.runtime.world import PHASES, Phase, World, given_of

Labels = Literal["classifier", "conditional", "group"]
STATIC = "rotate(degrees=15)+crop(padding=1)"


class Wishes(NamedTuple):
    """How samples are wanted."""

    of: str
    labels: Labels
    classifier: str | None
    each: int
    tau: float
    static: str
    limit: float


class GeneratePhase:
    """Makes samples on every client, and hands on data that hold them."""

    def __init__(self, name: str, recipe: Recipe, wishes: Wishes) -> None:
        self.name, self.recipe, self.wishes = name, recipe, wishes

    def check(self, given: Given, earlier: Mapping[str, Phase]) -> None:
        """Refuses what cannot be run."""
        self.check_wishes(earlier)
        if self.recipe.skew:
            raise InputError(f"The phase '{self.name}' cannot generate for clients with skew={self.recipe.skew}.")

    def check_wishes(self, earlier: Mapping[str, Phase]) -> None:
        """Refuses what does not fit the phases before."""
        wish, before = self.wishes, earlier.get(self.wishes.of)
        if not isinstance(before, GanPhase):
            raise RecipeError(
                f"The phase '{self.name}' generates with those of the phase '{wish.of}', which is no earlier phase of "
                "kind gan; say of which one: of='...'."
            )
        groups = before.recipe.options.get("groups", 1)
        if wish.each > groups:
            raise InputError(
                f"The phase '{self.name}' gives each client {wish.each} generators, but there are {groups}; "
                "set each to no more."
            )
        if (wish.labels == "conditional") != before.conditional:
            raise InputError(
                f"The phase '{self.name}' has labels={wish.labels}, but the generators of '{wish.of}' have "
                f"conditional={str(before.conditional).lower()}; both belong together."
            )
        if wish.labels == "classifier" and wish.classifier not in earlier:
            raise InputError(
                f"The phase '{self.name}' labels by a classifier, but '{wish.classifier}' is no earlier phase that "
                "trains one; name it (classifier='...'), or take labels=group or a conditional gan."
            )

    def run(self, world: World, folder: Path | None, listeners: Listening) -> World:
        e = prepare(load(self.recipe, {"initial": None}), given_of(world))
        kept = None if folder is None else read_summary(folder)
        if folder is not None and kept is not None:
            made = _read(folder / "samples.safetensors", e.data.n_clients)
            return self._handed_on(world, e, made, kept)
        plan = self._plan(world, e)
        plan.refuse_collapsed(self.wishes.of)
        counts = e.data.labels.astype(np.float64)
        known = _known(counts)
        made = [plan.for_client(k, e.data.client(k), counts[k], known) for k in range(e.data.n_clients)]
        summary = _summary(self.wishes, e, plan.generators, made)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder / "samples.safetensors", made)
            _picture(folder / "samples.png", plan, e.dataset)
            write_json(folder / "summary.json", summary)
        return self._handed_on(world, e, made, summary)

    def _plan(self, world: World, e: Experiment) -> Plan:
        wish, params = self.wishes, None
        if wish.labels == "classifier":
            params = flat_model(world.models[str(wish.classifier)], e.net, f"of the phase '{wish.classifier}'")
        return self.plan(e, world.made[wish.of], params)

    def plan(self, e: Experiment, generators: Generators, classifier: Tensor | None) -> Plan:
        """How samples are made; ``classifier`` [P] says which class they are of, where that is asked of one."""
        wish = self.wishes
        label = None if classifier is None else _labeller(e.net, classifier)
        static = make_augment(wish.static, e.dataset) if wish.static else None
        key = Key.root(self.recipe.seed).fold("generate")
        return Plan(generators, wish.each, wish.tau, wish.labels, label, static, wish.limit, key)

    def _handed_on(self, world: World, e: Experiment, made: list[Made], summary: dict[str, Any]) -> World:
        return world._replace(
            data=with_samples(e.data, made), now=world.now + summary["seconds"], made={**world.made, self.name: summary}
        )


def _labeller(net: Network, params: Tensor) -> Any:
    def label(x: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([net(params, some).logits.argmax(1) for some in x.split(512)])

    return label


def _known(counts: NDArray[np.float64]) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = counts.sum(0) > 0
    if not known.all():
        classes = ", ".join(map(str, np.flatnonzero(~known)))
        warnings.warn(f"No client has samples of class {classes}, so none are generated for it.", stacklevel=2)
    return known


# ------------------------------------------------------------------ data that hold them
def with_samples(data: FederatedData, made: list[Made]) -> FederatedData:
    """The data in which each client holds what was made for it beside its own samples."""
    d = data.dataset
    begin = len(d)
    parts = []
    for k, one in enumerate(made):
        parts.append(np.concatenate([data.partition[k], np.arange(begin, begin + len(one.y))]))
        begin += len(one.y)
    x = torch.cat([d.x, *(stored(d, one.x) for one in made)])
    y = torch.cat([d.y, *(one.y.to(d.y.dtype) for one in made)])
    partition = Partition.of(parts, shared=data.partition.shared, clusters=data.partition.clusters)
    return FederatedData(replace(d, x=x, y=y, groups={}), partition)


def stored(dataset: Dataset, x: Tensor) -> Tensor:
    """Inputs of a network as the data set stores samples: the inverse of its scaling, rounded where it holds bytes."""
    raw = x.reshape(len(x), *dataset.input_shape)
    scaling = dataset.scaling
    if isinstance(scaling, Scaling):
        raw = (raw * torch.as_tensor(scaling.std) + torch.as_tensor(scaling.mean)) / scaling.scale
    if dataset.x.dtype.is_floating_point:
        return raw.to(dataset.x.dtype)
    return raw.round().clamp(float(dataset.x.min()), float(dataset.x.max())).to(dataset.x.dtype)


# ------------------------------------------------------------------ what it took, what is kept
def _summary(wish: Wishes, e: Experiment, generators: Generators, made: list[Made]) -> dict[str, Any]:
    static = [int((one.origin < 0).sum()) for one in made]
    total = [len(one.y) for one in made]
    size = 4 * int(e.dataset.x[0].numel())
    return {
        "generators": len(generators),
        "generated": sum(one.generated for one in made),
        "kept": sum(total) - sum(static),
        "static": sum(static),
        "bytes_stored": sum(total) * e.dataset.x[0].numel() * e.dataset.x.element_size(),
        "bytes_down": _generator_bytes(generators) * wish.each * e.data.n_clients,
        "seconds": _seconds(wish, e, generators, made),
        "samples_per_client": total,
        "classes_before": e.data.labels.sum(0).tolist(),
        "bytes_per_sample_as_input": size,
    }


def _generator_bytes(generators: Generators) -> int:
    slots = generators.net.layout.slots
    return 4 * sum(slot.size for slot in slots if slot.name.startswith("generator."))


def _seconds(wish: Wishes, e: Experiment, generators: Generators, made: list[Made]) -> float:
    """Until the slowest client has its generators, has made its samples and labelled them."""
    x = e.dataset.inputs(e.dataset.x[:1])
    net = generators.net
    layers = zip(net.layout.layers, cost_of(net, x).forward, strict=True)
    work = sum(cost for layer, cost in layers if layer.name.startswith("generator."))
    if wish.labels == "classifier":
        work += sum(e.cost.forward)
    counts = np.array([one.generated for one in made])
    down = wish.each * _generator_bytes(generators) / e.fleet.down
    return float((down + counts * work / e.fleet.flops).max())


def _write(path: Path, made: list[Made]) -> None:
    client = torch.cat([torch.full((len(one.y),), k) for k, one in enumerate(made)])
    columns = {name: torch.cat([getattr(one, name) for one in made]) for name in ("x", "y", "origin")}
    generated = torch.tensor([one.generated for one in made])
    tree = {**columns, "client": client, "generated": generated}
    write_bytes(path, safetensors.torch.save({key: value.contiguous() for key, value in tree.items()}))


def _read(path: Path, n_clients: int) -> list[Made]:
    tree = safetensors.torch.load_file(path)
    mine = [tree["client"] == k for k in range(n_clients)]
    return [
        Made(tree["x"][rows], tree["y"][rows], tree["origin"][rows], int(tree["generated"][k]))
        for k, rows in enumerate(mine)
    ]


def _picture(path: Path, plan: Plan, dataset: Dataset) -> None:
    """Samples of every generator, a row each; nothing for data that are no images."""
    if dataset.kind != "image":
        return
    from matplotlib.figure import Figure

    n, columns = len(plan.generators), 16
    figure = Figure(figsize=(columns * 0.5, n * 0.55 + 0.3))
    axes = figure.subplots(n, columns, squeeze=False)
    for m in range(n):
        there = torch.from_numpy(np.flatnonzero(plan.generators.counts[m] > 0))  # the classes of its clients, in turn
        told = there[torch.arange(columns) % len(there)]
        images = stored(dataset, plan.sample(m, columns, plan.key.fold("picture", m), told)).float()
        shown = (images - images.min()) / (images.max() - images.min()).clamp_min(1e-6)
        for axis, image in zip(axes[m], shown, strict=True):
            axis.imshow(image.permute(1, 2, 0).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
            axis.set_axis_off()
        axes[m][0].set_title(f"generator {m}", fontsize=6, loc="left", pad=2)
    figure.savefig(path, dpi=150)


@PHASES.add(hidden=("name", "recipe"))
def generate(
    name: str,
    recipe: Recipe,
    of: str = "gan",
    labels: Labels = "classifier",
    classifier: str | None = None,
    each: Count = 1,
    tau: PositiveShare = 0.5,
    static: str = STATIC,
    limit: NotNegative = 2.0,
) -> Phase:
    """Every client balances its classes with samples of the generators it lacks most (GANDALF, phase 2).

    of: the phase that trained the generators. labels: of samples, by a ``classifier`` (an earlier phase of kind train),
    of a ``conditional`` gan, or drawn from the mix of the generator's ``group``. each: J, generators per client. tau:
    how far classes are balanced. static: changes that fill gaps, at most ``limit`` times what there is of a class; none
    where it is empty. Later phases train on the data with these samples.
    """
    return GeneratePhase(name, recipe, Wishes(of, labels, classifier, each, tau, static, limit))
