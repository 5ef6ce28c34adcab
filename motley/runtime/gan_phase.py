"""A phase that trains generators: a WGAN for each group of clients (GANDALF), or one for all (FedDPGAN)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.core.errors import DataError, InputError
from motley.core.files import write_bytes
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.ranges import Count, CountOrZero, NotNegative, Positive
from motley.core.registry import parse
from motley.data.dataset import Dataset
from motley.data.datasets import load as load_dataset
from motley.nets.zoo import build
from motley.protocol.mediators import Rule, told_counts
from motley.runtime.experiment import Given, prepare
from motley.runtime.launch import Listening, Run, has_checkpoint, launch_one, read_summary
from motley.runtime.listeners import Listener
from motley.runtime.recipe import Recipe, load
from motley.runtime.result import Result
from motley.runtime.world import PHASES, Phase, World, given_of


@dataclass(frozen=True)
class Generators:
    """What such a phase hands on."""

    net: Network
    params: Tensor  # [M, P]
    counts: NDArray[np.float64]  # [M, C] samples per class of each one's clients, as these told
    clients: list[list[int]]  # of each

    @classmethod
    def of(cls, run: Run, noise: float) -> Generators:
        """The models that a run has come to, one for each group, or one for everybody."""
        memory = run.fed.memory
        models = memory.get("models", [run.model])
        clients = [team.tolist() for team in memory.get("clients", [torch.arange(run.experiment.data.n_clients)])]
        told = told_counts(run.fed, noise)
        assert told is not None
        counts = np.array([told[team].sum(0) for team in clients])
        return cls(run.experiment.net, torch.stack([model.cpu() for model in models]), counts, clients)

    def __len__(self) -> int:
        return len(self.params)


class Catch(Listener):
    """Takes what a run that ends has in its memory."""

    def __init__(self, noise: float) -> None:
        self.noise = noise
        self.found: Generators | None = None

    def finished(self, run: Run, result: Result) -> None:
        self.found = Generators.of(run, self.noise)


class GanPhase:
    """Trains generators and critics, and hands the generators on."""

    def __init__(self, name: str, recipe: Recipe, conditional: bool, noise: float) -> None:
        self.name, self.recipe, self.conditional, self.noise = name, recipe, conditional, noise

    def given_in(self, world: Given) -> Given:
        """What the run is given: a network whose generator makes what samples can be."""
        dataset = self._dataset(world)
        if not dataset.n_classes or dataset.kind == "text":
            raise DataError(f"A gan phase needs samples of numbers with classes, which '{dataset.name}' has not.")
        spec = self.network(world)
        net = build(spec, dataset.input_shape, dataset.n_outputs, 0, Key.root(self.recipe.seed).fold("init"))
        return world._replace(net=net, method=None, problem=None, public=None)

    def _dataset(self, world: Given) -> Dataset:
        return world.data.dataset if world.data is not None else load_dataset(self.recipe.data)

    def network(self, world: Given) -> str:
        """The network with all that it takes from the data: between which numbers its samples lie."""
        low, high = bounds(self._dataset(world))
        ((name, arguments),) = [(call.name, call.arguments) for call in parse(self.recipe.model, "model")]
        whole = {"low": low, "high": high, **arguments, "conditional": self.conditional}
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in whole.items())})"

    def check(self, given: Given, earlier: Mapping[str, Phase]) -> None:
        """Refuses what cannot be run."""
        e = prepare(self.recipe, self.given_in(given))
        groups = self.recipe.options.get("groups", 0)
        if groups > e.data.n_clients:
            raise InputError(
                f"The phase '{self.name}' wants {groups} groups of {e.data.n_clients} clients; set groups to less."
            )

    def run(self, world: World, folder: Path | None, listeners: Listening) -> World:
        given = self.given_in(given_of(world))
        if folder is not None and read_summary(folder) is not None:
            run = Run(prepare(self.recipe, given), folder)
            try:
                run.take_up()
                found = Generators.of(run, self.noise)
                now = run.records[-1].virtual_time
            finally:
                run.close()
        else:
            catch = Catch(self.noise)
            going_on = folder is not None and has_checkpoint(folder)
            result = launch_one(self.recipe, folder, [catch, *listeners], given, resume=going_on)
            assert catch.found is not None
            found, now = catch.found, result.records[-1].virtual_time
        if folder is not None:
            write_generators(found, folder / "generators.safetensors")
        return world._replace(made={**world.made, self.name: found}, now=now)


def bounds(dataset: Dataset) -> tuple[float, float]:
    """Between which numbers the inputs of a network lie, for what is stored."""
    ends = dataset.inputs(
        torch.stack([torch.full_like(dataset.x[0], float(f(dataset.x))) for f in (torch.min, torch.max)])
    )
    return float(ends.min()), float(ends.max())


def write_generators(found: Generators, path: Path) -> None:
    """The generators alone, by number and name."""
    import safetensors.torch

    named = {
        f"{m}.{name}": value.contiguous()
        for m, params in enumerate(found.params)
        for name, value in found.net.layout.unflatten(params).items()
        if name.startswith("generator.")
    }
    write_bytes(path, safetensors.torch.save(named))


@PHASES.add(hidden=("name", "recipe"))
def gan(
    name: str,
    recipe: Recipe,
    network: str = "gan_conv",
    groups: Count = 2,
    by: Rule = "kmeans",
    critic_steps: Count = 2,
    generator_steps: Count = 3,
    critic_rate: Positive = 1e-4,
    generator_rate: Positive = 5e-5,
    penalty: NotNegative = 10.0,
    batch_size: Count = 256,
    rounds: Count = 100,
    window: CountOrZero = 0,
    threshold: Positive = 0.02,
    sigma: NotNegative = 0.0,
    clip: Positive | None = None,
    histogram_noise: NotNegative = 0.0,
    patience: Positive | None = None,
    conditional: bool = False,
    shared: Literal["groups", "fedavg"] = "groups",
) -> Phase:
    """Trains a WGAN with gradient penalty for each group of clients (GANDALF, phase 1).

    critic_steps: T_d, per step of the generator; generator_steps: T_g, per visit. Adam with betas 0 and 0.9. sigma,
    clip: noise before every hand-over (`hand_over_noise`). window, threshold: when losses count as flat
    (`group_models`); rounds is the cap. groups=1 is Private FL GAN, as many as clients SDA-FL; shared=fedavg: one GAN
    by FedAvg (FedDPGAN).
    """
    steps = generator_steps * (critic_steps + 1)
    method = f"fedavg+fixed_steps(steps={steps})+player_losses"
    if sigma or clip:
        method += f"+hand_over_noise(sigma={sigma!r}, clip={clip!r})"
    walks: dict[str, Any] = {
        "groups": groups,
        "by": by,
        "window": window,
        "threshold": threshold,
        "histogram_noise": histogram_noise,
        **({"patience": patience} if patience is not None else {}),
    }
    alone = {"protocol": "group_models", "options": walks}
    averaged = {"protocol": "synchronous", "options": {}, "cohort": recipe.clients or recipe.cohort}
    changes = {
        "model": network,
        "problem": f"wgan_gp(critic_steps={critic_steps}, penalty={penalty!r}, "
        f"generator_rate={generator_rate / critic_rate!r})",
        "method": method,
        "params": {},
        "optimizer": "adam(beta1=0.0, beta2=0.9)",
        "lr": critic_rate,
        "lr_decay": 1.0,
        "batch_size": batch_size,
        "rounds": rounds,
        "epochs": 1.0,
        "augment": "",
        "initial": None,
        "evaluate_every": max(1, rounds // 10),
        "diagnostics": [],
        "precision": "float32",
        **(alone if shared == "groups" else averaged),
    }
    return GanPhase(name, load(recipe, changes), conditional, histogram_noise)
