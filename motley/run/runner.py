"""Carries out a run: rounds, evaluation, records, checkpoints; interrupted runs go on where they were."""

from __future__ import annotations

import copy
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import motley
from motley.core.errors import InputError, MemoryFullError, StateError, TrainingError
from motley.core.network import Network
from motley.core.types import Round
from motley.data.dataset import Dataset, tensors_to
from motley.data.split import balanced_sample
from motley.nets.cost import flops
from motley.protocol import PROTOCOLS
from motley.protocol.federation import Federation, option_names
from motley.run import checkpoint, divergence  # noqa: F401 (the second registers diagnostics)
from motley.run.charges import profiled
from motley.run.diagnostics import Diagnostics, stability
from motley.run.evaluation import Scores, evaluate
from motley.run.executors import EXECUTORS, Executor
from motley.run.executors.choice import choose
from motley.run.executors.memory import set_aside
from motley.run.experiment import Experiment, initial_params, prepare
from motley.run.fairness import participation
from motley.run.federation import SimulatedFederation
from motley.run.files import held, write_json, write_text
from motley.run.flights import Schedule, Tally
from motley.run.recipe import Recipe, load
from motley.run.records import GOALS, Record, environment, read_records, validations
from motley.run.store import ClientStore
from motley.server.server import Server

Observer = Callable[[Record], None]


@dataclass(frozen=True)
class Result:
    """The end of a run."""

    folder: Path | None
    recipe: Recipe
    records: list[Record]
    params: Tensor
    summary: dict[str, Any]
    net: Network | None = None  # None: the run broke off, and this stands for what it left

    @property
    def model(self) -> nn.Module:
        """A copy of the model with the trained weights."""
        if self.net is None:
            raise StateError("This run broke off, so there is no model.")
        module = copy.deepcopy(self.net.module)
        with torch.no_grad():
            for name, value in self.net.layout.unflatten(self.params.cpu()).items():
                module.get_parameter(name).copy_(value)
        return module

    @property
    def accuracy(self) -> float:
        return float(self.summary["accuracy"])


class Run:
    """One run in one directory (or in memory only, without a directory)."""

    def __init__(self, experiment: Experiment, folder: Path | None, observer: Observer | None = None) -> None:
        set_aside()
        self.experiment = experiment
        self.recipe = experiment.recipe
        self.folder = folder
        self.observer = observer
        self.records: list[Record] = []
        self.diagnostics = Diagnostics(experiment.recipe.diagnostics, experiment)
        self.executor = make_executor(experiment)
        self.fed = self._federation()
        self.judged = judged_on(self.fed.weights.value.device, experiment.dataset)
        self.validation = experiment.validation and judged_on(self.fed.weights.value.device, experiment.validation)
        self._wall_before = 0.0
        self._begun = time.perf_counter()
        self._saved = time.perf_counter()
        self._last: Scores | None = None
        self._lock: ExitStack | None = None  # on the directory

    def _federation(self) -> SimulatedFederation:
        e, recipe = self.experiment, self.recipe
        params = initial_params(e).to(getattr(self.executor, "device", "cpu"))
        store = ClientStore(self._checkpoints, int(recipe.state_memory_mb * (1 << 20)), params.device)
        return SimulatedFederation(
            training=e.training,
            data=e.data,
            fleet=e.fleet,
            cost=e.cost,
            executor=self.executor,
            server=Server(e.method, e.net, params, e.data.n_clients, **what_servers_know(e)),
            params=params,
            key=e.key,
            schedule=Schedule(
                recipe.rounds,
                recipe.cohort,
                recipe.epochs,
                recipe.lr,
                recipe.lr_decay,
                recipe.deadline,
                recipe.on_bad_update,
            ),
            store=store,
            options={**e.method.options, **recipe.options},
            after_round=self._after_round,
        )

    @property
    def _checkpoints(self) -> Path | None:
        return self.folder / "checkpoint" if self.folder else None

    @property
    def model(self) -> Tensor:
        """The model as it is now: the global one, or what the protocol shows in its place."""
        return (self.fed.shown or self.fed.weights).value

    @property
    def wall(self) -> float:
        return self._wall_before + time.perf_counter() - self._begun

    def go(self) -> Result:
        """Trains to the end. What is interrupted can be taken up with `resume`."""
        try:
            self._own()
            if self.fed.round == 0:
                self._save()
            self.fed.loop.run(_drive(self.experiment.method.protocol, self.fed))
            return self._finish()
        except torch.OutOfMemoryError:
            raise MemoryFullError(
                f"The GPU's memory was full after round {self.fed.round}; take a smaller batch_size or cohort, or let "
                "fewer processes share the GPU (what was saved can be resumed)."
            ) from None
        finally:
            self.close()

    def close(self) -> None:
        """Ends the executor's processes and lets go of the directory."""
        self.executor.close()
        self.fed.after_round = self.fed.loop.on_idle = None  # they refer back: with them it would outlive its last use
        if self._lock is not None:
            self._lock.close()

    def _own(self) -> None:
        """Takes the directory for this process alone, unless it has been taken."""
        if self.folder is not None and self._lock is None:
            self._lock = ExitStack()
            self._lock.enter_context(held(self.folder))

    def take_up(self) -> None:
        """Goes back to the last checkpoint of this directory."""
        assert self.folder is not None
        assert self._checkpoints is not None
        self._own()
        content = checkpoint.read(self._checkpoints)
        checkpoint.restore(self.fed, self._checkpoints, content)
        self._wall_before = content["wall"]
        log = self.folder / "rounds.jsonl"
        if self.fed.round:
            self.records = [record for record in read_records(log) if record.round <= self.fed.round]
        if len(self.records) < self.fed.round:
            raise StateError(f"{log} holds {len(self.records)} rounds, the checkpoint {self.fed.round}; start anew.")
        write_text(log, "".join(record.to_line() + "\n" for record in self.records))

    def _after_round(self, fed: SimulatedFederation, rnd: Round, tally: Tally) -> None:
        scores = None
        if rnd.number % self.recipe.evaluate_every == 0 or rnd.number == self.recipe.rounds:
            scores = evaluate(self.experiment.net, self.model, self.judged)
            if scores.loss != scores.loss:
                raise TrainingError(
                    f"The global model is not finite after round {rnd.number}; lower the learning rate "
                    "(or the server's step)."
                )
            if self.validation is not None:
                own = evaluate(self.experiment.net, self.model, self.validation)
                fed.note(weighted_f1=scores.weighted_f1)
                fed.note(
                    **{f"validation_{name}": getattr(own, name) for name in GOALS if getattr(own, name) is not None}
                )
        record = Record(
            round=rnd.number,
            virtual_time=fed.now,
            wall_time=self.wall,
            participants=len(tally.participants),
            arrived=tally.arrived,
            lost=tally.lost,
            late=tally.late,
            bytes_up=tally.bytes_up,
            bytes_down=tally.bytes_down,
            train_loss=tally.train_loss(),
            accuracy=scores.accuracy if scores else None,
            loss=scores.loss if scores else None,
            macro_f1=scores.macro_f1 if scores else None,
            auc=scores.auc if scores else None,
            staleness=tally.stale,
            extra={**_ends(tally), **tally.notes, **self._diagnose(fed, rnd, scores)},
        )
        self.records.append(record)
        if self.folder is not None:
            with (self.folder / "rounds.jsonl").open("a") as log:
                log.write(record.to_line() + "\n")
        if time.perf_counter() - self._saved >= self.recipe.checkpoint_seconds or rnd.number == self.recipe.rounds:
            self._save()
        if self.observer is not None:
            self.observer(record)

    def _diagnose(self, fed: SimulatedFederation, rnd: Round, scores: Scores | None) -> dict[str, Any]:
        if not self.diagnostics.functions:
            return {}
        accuracies = [record.accuracy for record in self.records if record.accuracy is not None]
        if scores is not None:
            accuracies.append(scores.accuracy)
        return self.diagnostics.measure(rnd, self.model, fed.came, scores, accuracies, fed.measures)

    def _save(self) -> None:
        if self._checkpoints is not None:
            extra = {"wall": self.wall, "motley": motley.__version__, "executor": self.executor.name}
            checkpoint.save(self.fed, self._checkpoints, extra)
            self._saved = time.perf_counter()

    def _ends(self) -> dict[str, Any]:
        e, fed = self.experiment, self.fed
        tasks = sum(record.participants for record in self.records)
        ages = Counter(age for record in self.records for age in record.staleness)
        found: dict[str, Any] = {"fairness": participation(fed.chosen, fed.heard, e.fleet.flops)}
        for name in ("stragglers", "dropouts"):
            found[f"{name}_rate"] = sum(record.extra.get(name, 0) for record in self.records) / max(1, tasks)
        if ages:
            found["staleness"] = {str(age): ages[age] for age in sorted(ages)}
        return found

    def _finish(self) -> Result:
        measured = [record for record in self.records if record.accuracy is not None]
        last = measured[-1]
        summary: dict[str, Any] = {
            "run": str(self.folder) if self.folder else None,
            "rounds": self.records[-1].round,
            "accuracy": last.accuracy,
            "best_accuracy": max(record.accuracy or 0.0 for record in measured),
            "stability": stability([record.accuracy or 0.0 for record in measured]),
            "loss": last.loss,
            "virtual_time": last.virtual_time,
            "bytes_up": sum(record.bytes_up for record in self.records),
            "bytes_down": sum(record.bytes_down for record in self.records),
            "lost": sum(record.lost for record in self.records),
            "late": sum(record.late for record in self.records),
            "model_sha256": checkpoint.flat_sha256(self.model),
            "seed": self.recipe.seed,
            "wall_s": round(self.wall, 3),
            "executor": self.executor.name,
            **self._ends(),
        }
        if self.experiment.validation is not None:
            summary["validated"] = validations(self.records)
        if self.folder is not None:
            write_json(self.folder / "summary.json", summary)
        return Result(self.folder, self.recipe, self.records, self.model, summary, self.experiment.net)


def judged_on(device: torch.device, dataset: Dataset) -> Dataset:
    """A data set with its test samples where the model is, and, where memory allows, as the network takes them.

    They are looked at again and again; turning bytes into numbers can take longer than a small network does.
    """
    moved = replace(
        dataset,
        test_x=dataset.test_x.to(device),
        test_y=dataset.test_y.to(device),
        scaling=tensors_to(dataset.scaling, device),
    )
    if moved.scaling is None or moved.test_x.numel() * WIDEST > READY_BYTES:
        return moved
    return replace(moved, test_x=moved.inputs(moved.test_x), scaling=None)


WIDEST = 8  # bytes of an input as a network takes it: int64 tokens
READY_BYTES = 1 << 29


def _ends(tally: Tally) -> dict[str, int]:
    """How many clients sent less than was asked for, and how many of these nothing."""
    counts = {"concluded": tally.concluded, "stragglers": tally.stragglers, "dropouts": tally.dropouts}
    return counts if tally.stragglers else {}


async def _drive(protocol: str, fed: Federation) -> None:
    """Runs a protocol with its options; one that names none reads them from the federation."""
    known = option_names(protocol)
    for name in fed.options:
        if known is not None and name not in known:
            told = ", ".join(known) or "none"
            raise InputError(f"The protocol '{protocol}' has no option '{name}'; its options are: {told}.")
    options = fed.options if PROTOCOLS[protocol].parameters else {}
    await PROTOCOLS.make(protocol, fed, **options)


def what_servers_know(e: Experiment) -> dict[str, Any]:
    """What parts may learn at the start beside the model and the number of clients."""
    seconds = profiled(e.training, e.data, e.fleet, e.cost, e.recipe.epochs)
    costs = torch.tensor([flops(e.cost, frozen) for frozen in range(e.net.n_layers)], dtype=torch.float64)
    return {
        "public": partial(balanced_sample, e.dataset, e.key),
        "n": torch.from_numpy(e.data.sizes.astype(np.float32)),
        "batch_size": e.recipe.batch_size,
        "seconds": torch.from_numpy(seconds.astype(np.float32)),
        "frozen_cost": (costs / costs[0]).to(torch.float32),
    }


def make_executor(experiment: Experiment) -> Executor:
    """The executor a recipe asks for."""
    e, recipe = experiment, experiment.recipe
    name = recipe.executor
    if name == "auto":
        name = choose(
            e.training,
            e.data,
            device=recipe.device,
            workers=recipe.workers,
            cohort=recipe.cohort,
            rounds=recipe.rounds,
            epochs=recipe.epochs,
        )
    return EXECUTORS.make(name, e.training, e.data, recipe.workers, recipe.device)


def new_folder(recipe: Recipe, parent: Path) -> Path:
    """A directory of its own for a run: name, method, seed and the recipe's hash."""
    method = recipe.method.split("(")[0].replace(" ", "") if len(recipe.method) > 40 else recipe.method.replace(" ", "")
    safe = "".join(letter if letter.isalnum() or letter in "-_.+=" else "_" for letter in method)
    base = f"{recipe.name.replace('/', '-')}-{safe}-s{recipe.seed}-{recipe.identity}"
    for number in range(1, 10_000):
        folder = parent / (base if number == 1 else f"{base}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise StateError(f"There are too many runs named {base} in {parent}; delete some.")


def begin(recipe: Recipe, folder: Path) -> None:
    """Writes what a run's directory holds from the start: the resolved recipe and facts about the machine."""
    if (folder / "rounds.jsonl").exists() or (folder / "checkpoint").exists():
        raise StateError(
            f"{folder} holds a run already; continue it with 'motley resume', or choose another directory."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "recipe.toml", recipe.to_toml())
    write_json(folder / "environment.json", environment())


def start(recipe: Recipe, folder: Path, observer: Observer | None = None, **given: Any) -> Result:
    """Runs a recipe in a new directory."""
    experiment = prepare(recipe, **given)
    begin(recipe, folder)
    return Run(experiment, folder, observer).go()


def run(
    recipe: str | Path | Mapping[str, Any] | Recipe = "digits",
    /,
    folder: str | Path | None = None,
    observer: Observer | None = None,
    **overrides: Any,
) -> Result:
    """Runs a recipe (a name, a TOML file, a mapping or a `Recipe`); keywords override its keys.

    With ``folder`` the run is saved there and can be resumed; without, it leaves nothing on disk.
    """
    resolved = load(recipe, overrides)
    if folder is None:
        return Run(prepare(resolved), None, observer).go()
    return start(resolved, Path(folder), observer)


def open_run(folder: str | Path, changes: Iterable[str] = ()) -> Recipe:
    """The recipe of a run's directory."""
    path = Path(folder) / "recipe.toml"
    if not path.is_file():
        raise StateError(f"{folder} is not the directory of a run: there is no recipe.toml in it.")
    return load(str(path), changes)


def resume(folder: str | Path, observer: Observer | None = None, changes: Iterable[str] = (), **given: Any) -> Result:
    """Continues an interrupted run to exactly the model the uninterrupted run gives.

    A run that was given things in Python (data, net, method, fleet; see `prepare`) must be given them again.
    """
    place = Path(folder)
    recipe = open_run(place, changes)
    if recipe.executor == "auto":
        recipe = load(recipe, {"executor": checkpoint.read(place / "checkpoint")["executor"]})
    made = Run(prepare(recipe, **given), place, observer)
    try:
        made.take_up()
    except BaseException:
        made.close()
        raise
    return made.go()


def read_summary(folder: str | Path) -> dict[str, Any] | None:
    """The summary of a finished run, or None."""
    path = Path(folder) / "summary.json"
    if not path.is_file():
        return None
    content: dict[str, Any] = json.loads(path.read_text())
    return content
