"""Runs followed elsewhere: ``track=tensorboard``, ``mlflow``, ``wandb``, several joined by ``+``; all are listeners.

Their libraries are imported when a run begins. A run that is resumed goes on in the same place of the tracker.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motley.core.errors import InputError
from motley.core.files import write_json
from motley.core.registry import Registry, parse
from motley.runtime.listeners import Listener
from motley.runtime.recipe import Recipe
from motley.runtime.records import Record

if TYPE_CHECKING:
    from motley.runtime.launch import Result, Run

TRACKERS: Registry[Listener] = Registry("tracker")
"""Factories of listeners that tell others how a run goes; add your own with ``@TRACKERS.add()``."""


def make_trackers(spec: str | None) -> list[Listener]:
    """The trackers of a recipe."""
    if spec is None:
        return []
    return [TRACKERS.make(call.name, **call.arguments) for call in parse(spec, "tracker")]


def numbers(record: Record) -> Iterator[tuple[str, float]]:
    """Everything of a round that is a number: scores, loss, time, traffic, and what diagnostics gave."""
    for name, value in record.scores.items():
        yield f"test/{name}", value
    if record.train_loss is not None:
        yield "train/loss", record.train_loss
    for name in ("virtual_time", "wall_time", "participants", "arrived", "lost", "late", "bytes_up", "bytes_down"):
        yield f"round/{name}", float(getattr(record, name))
    for name, value in record.extra.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            group, plain = ("validation", name[11:]) if name.startswith("validation_") else ("more", name)
            yield f"{group}/{plain}", float(value)


def library(module: str, package: str) -> Any:
    """A library that is not everybody's."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f"This tracker needs {package}: pip install {package}.") from None


def _settings(recipe: Recipe) -> dict[str, str]:
    return {key: str(value) for key, value in recipe.model_dump(exclude={"phases"}, exclude_defaults=True).items()}


def _note(run: Run, name: str) -> Path | None:
    """Where a run's directory remembers its place in a tracker."""
    return None if run.folder is None else run.folder / f"{name}.json"


def _known(path: Path | None) -> str | None:
    return str(json.loads(path.read_text())["id"]) if path is not None and path.is_file() else None


class TensorBoard(Listener):
    """Event files in the run's directory, or in one of one's own."""

    def __init__(self, folder: str | None) -> None:
        self.folder = folder
        self.module = library("torch.utils.tensorboard", "tensorboard")

    def begun(self, run: Run) -> None:
        inside = run.folder / "tensorboard" if run.folder is not None else Path("tensorboard") / run.recipe.identity
        place = inside if self.folder is None else Path(self.folder) / (run.folder or inside).name
        again = len(run.records) + 1 if run.records else None
        self.writer = self.module.SummaryWriter(str(place), purge_step=again)
        if again is None:
            rows = "".join(f"| {key} | {value} |\n" for key, value in _settings(run.recipe).items())
            self.writer.add_text("recipe", "| key | value |\n| --- | --- |\n" + rows)

    def round_ended(self, run: Run, record: Record) -> None:
        for name, value in numbers(record):
            self.writer.add_scalar(name, value, record.round)
        self.writer.flush()

    def finished(self, run: Run, result: Result) -> None:
        self.writer.close()


class MLflow(Listener):
    """An MLflow run with the recipe as parameters and a metric for every number of a round."""

    def __init__(self, experiment: str, uri: str | None) -> None:
        self.experiment, self.uri = experiment, uri
        self.mlflow = library("mlflow", "mlflow")

    def begun(self, run: Run) -> None:
        if self.uri is not None:
            self.mlflow.set_tracking_uri(self.uri)
        self.mlflow.set_experiment(self.experiment)
        place = _note(run, "mlflow")
        known = _known(place)
        self.run = self.mlflow.start_run(run_id=known, run_name=None if known else run.recipe.name)
        if known is None:
            self.mlflow.log_params(_settings(run.recipe))
            if place is not None:
                write_json(place, {"id": self.run.info.run_id})

    def round_ended(self, run: Run, record: Record) -> None:
        self.mlflow.log_metrics(dict(numbers(record)), step=record.round)

    def finished(self, run: Run, result: Result) -> None:
        if run.folder is not None:
            self.mlflow.log_artifact(str(run.folder / "model.safetensors"))
        self.mlflow.end_run()


class WeightsAndBiases(Listener):
    """A run at Weights & Biases with the recipe as its configuration."""

    def __init__(self, project: str, entity: str | None, mode: str | None) -> None:
        self.given = {"project": project, "entity": entity, "mode": mode}
        self.wandb = library("wandb", "wandb")

    def begun(self, run: Run) -> None:
        place = _note(run, "wandb")
        known = _known(place)
        folder = None if run.folder is None else str(run.folder)
        more = {} if known is None else {"id": known, "resume": "allow"}
        self.run = self.wandb.init(
            name=run.recipe.name, config=run.recipe.model_dump(), dir=folder, **self.given, **more
        )
        if known is None and place is not None:
            write_json(place, {"id": self.run.id})

    def round_ended(self, run: Run, record: Record) -> None:
        self.run.log(dict(numbers(record)), step=record.round)

    def finished(self, run: Run, result: Result) -> None:
        self.run.summary.update({key: value for key, value in result.summary.items() if isinstance(value, int | float)})
        self.run.finish()


@TRACKERS.add()
def tensorboard(folder: str | None = None) -> Listener:
    """Event files for TensorBoard, in the run's directory or below ``folder``."""
    return TensorBoard(folder)


@TRACKERS.add()
def mlflow(experiment: str = "motley", uri: str | None = None) -> Listener:
    """An MLflow run, on the tracking server that MLflow is set to, or on that at ``uri``."""
    return MLflow(experiment, uri)


@TRACKERS.add()
def wandb(project: str = "motley", entity: str | None = None, mode: str | None = None) -> Listener:
    """A run at Weights & Biases; ``mode=offline`` keeps it on this machine."""
    return WeightsAndBiases(project, entity, mode)
