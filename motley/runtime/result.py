"""The end of a run: the model, the records, and a summary of both."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from motley.core.errors import StateError
from motley.core.network import Network
from motley.core.stand_in import tensor_of
from motley.data.preparation import Preparation
from motley.runtime.checkpoint import flat_sha256
from motley.runtime.diagnostics import stability
from motley.runtime.fairness import participation
from motley.runtime.guarantee import account
from motley.runtime.recipe import Recipe
from motley.runtime.records import Record, validations

if TYPE_CHECKING:
    from motley.runtime.launch import Run


@dataclass(frozen=True)
class Result:
    """The end of a run."""

    folder: Path | None
    recipe: Recipe
    records: list[Record]
    params: Tensor
    summary: dict[str, Any]
    net: Network | None = None  # None: the run broke off, and this stands for what it left
    preparation: Preparation | None = None  # what is done to raw inputs before the model sees them

    @property
    def model(self) -> nn.Module:
        """A copy of the model with the trained weights."""
        if self.net is None:
            raise StateError("This run broke off, so there is no model.")
        return module_with(self.net, self.params)

    def module(self) -> nn.Module:
        """A copy of the model that takes raw inputs, as they were given: their scaling is part of it.

        On the raw test samples it gives what was scored.
        """
        model = self.model
        return model if self.preparation is None else self.preparation.module(model)

    def save(self, path: str | Path) -> Path:
        """Writes the trained model as safetensors, with what `motley.load_model` needs to make it again."""
        from motley.runtime.saving import save_as  # it reads runs' directories, which know results

        model = self.model
        assert self.net is not None
        return save_as(path, self.net, model, self.preparation)

    @property
    def scores(self) -> dict[str, float]:
        """Of the model at the end, the headline first."""
        return next((record.scores for record in reversed(self.records) if record.judged), {})

    @property
    def accuracy(self) -> float:
        return float(self.summary["accuracy"])


@torch.no_grad()
def module_with(net: Network, params: Tensor) -> nn.Module:
    """A copy of a network's module with these weights [P]."""
    module = copy.deepcopy(net.module)
    for name, value in net.layout.unflatten(params.detach().cpu()).items():
        tensor_of(module, name).copy_(value)
    return module


def summary_of(run: Run) -> dict[str, Any]:
    """What a finished run tells in one object."""
    if not run.records:
        raise StateError(f"The run ended ({run.ended}) before its first round did, so there is nothing to tell.")
    summary = {
        "run": str(run.folder) if run.folder else None,
        "rounds": run.records[-1].round,
        "ended": run.ended,
        **_scores(run),
        "virtual_time": run.records[-1].virtual_time,
        **{key: sum(getattr(record, key) for record in run.records) for key in _COUNTED},
        "model_sha256": flat_sha256(run.model),
        "seed": run.recipe.seed,
        "scale": run.experiment.preparation.told,
        "wall_s": round(run.wall, 3),
        "executor": run.executor_name,
        **_totals(run),
    }
    if run.experiment.validation is not None:
        summary["validated"] = validations(run.records, run.experiment.problem.goals)
    return summary


_COUNTED = ("bytes_up", "bytes_down", "lost", "late")


def _scores(run: Run) -> dict[str, Any]:
    """The headline at the end and at its best, how steady it was, and the loss."""
    problem = run.experiment.problem
    measured = [record for record in run.records if record.judged]
    name = problem.headline
    history = [record.scores[name] for record in measured if name in record.scores]
    best = max if problem.better(name) > 0 else min
    return {
        "headline": name,
        name: measured[-1].scores.get(name),
        f"best_{name}": best(history) if history else None,
        "stability": stability(history) if name == "accuracy" else None,
        "loss": measured[-1].loss,
    }


def _totals(run: Run) -> dict[str, Any]:
    ledger = run.fed.ledger
    tasks = sum(record.participants for record in run.records)
    ages = Counter(age for record in run.records for age in record.staleness)
    found: dict[str, Any] = {"fairness": participation(ledger.chosen, ledger.heard, run.experiment.fleet.flops)}
    for name in ("stragglers", "dropouts"):
        found[f"{name}_rate"] = sum(record.extra.get(name, 0) for record in run.records) / max(1, tasks)
    noise = run.fed.options.get("histogram_noise")
    private = account(run.experiment.method, ledger.chosen, noise)
    if private is not None:
        found["privacy"] = private
    if ages:
        found["staleness"] = {str(age): ages[age] for age in sorted(ages)}
    return found
