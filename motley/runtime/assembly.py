"""From an experiment to what a run is made of: an executor, a carrier, a ledger."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from motley.core.errors import TogetherError
from motley.core.tasks import Weights
from motley.core.types import Setting
from motley.engine import Executor, make_executor
from motley.engine.choice import choose
from motley.nets.cost import flops
from motley.protocol import PROTOCOLS
from motley.protocol.carrier import Carrier
from motley.runtime.client_store import ClientStore
from motley.runtime.coordinator import Coordinator
from motley.runtime.costs import Costs
from motley.runtime.experiment import Experiment, initial_params
from motley.runtime.virtual_carrier import VirtualCarrier
from motley.server.ledger import Ledger, Pace

ENDLESS = 1 << 62  # rounds of a part of a federation, whose protocol says how many


def federation(e: Experiment, carrier: Carrier, device: torch.device | str) -> Coordinator:
    """What the protocol of an experiment talks to; models lie on ``device``."""
    recipe = e.recipe

    def new_ledger(name: str, weights: Weights) -> Ledger:
        pace = Pace(
            ENDLESS if name else recipe.rounds,
            recipe.cohort,
            recipe.epochs,
            e.learning_rate,
            recipe.deadline,
            recipe.on_bad_update,
            bool(PROTOCOLS[e.method.protocol].meta.get("punctual")),
        )
        return Ledger(e.method, setting_of(e, weights.value), e.key.fold(name) if name else e.key, pace, name)

    options = {**e.method.options, **recipe.options}
    first = Weights(initial_params(e).to(device))
    return Coordinator(new_ledger("", first), carrier, options, new_ledger=new_ledger)


def simulated(e: Experiment, folder: Path | None, executor: Executor | None = None) -> VirtualCarrier:
    """The carrier of a simulation; what clients keep lies below ``folder`` where memory is short."""
    recipe = e.recipe
    made = executor if executor is not None else executor_of(e)
    store = ClientStore(folder, int(recipe.state_memory_mb * (1 << 20)), made.device)
    return VirtualCarrier(e.site, e.fleet, e.cost, made, store, recipe.epochs, e.now)


def executor_of(e: Experiment) -> Executor:
    """The executor a recipe asks for."""
    recipe = e.recipe
    spec = recipe.executor
    if spec == "auto":
        spec = _choice(e)
    try:
        return make_executor(spec, e.site, recipe.workers, recipe.device)
    except TogetherError as error:
        why = error
    chosen = _choice(e)
    warnings.warn(f"{why} This run takes executor={chosen}.", stacklevel=2)
    return make_executor(chosen, e.site, recipe.workers, recipe.device)


def _choice(e: Experiment) -> str:
    """The executor of a recipe that names none that can train its model."""
    recipe = e.recipe
    return choose(
        e.site,
        device=recipe.device,
        workers=recipe.workers,
        cohort=recipe.cohort,
        rounds=recipe.rounds,
        epochs=recipe.epochs,
    )


def setting_of(e: Experiment, params: Tensor) -> Setting:
    """What parts may know when they make their server state."""
    seconds = Costs(e.site, e.fleet, e.cost).profile(e.recipe.epochs)
    costs = torch.tensor([flops(e.cost, frozen) for frozen in range(e.net.n_layers)], dtype=torch.float64)
    return Setting(
        e.net,
        params,
        e.data.n_clients,
        public=e.public,
        n=torch.from_numpy(e.data.sizes.astype(np.float32)),
        batch_size=e.recipe.batch_size,
        seconds=torch.from_numpy(seconds.astype(np.float32)),
        frozen_cost=(costs / costs[0]).to(torch.float32),
        key=e.key,
    )
