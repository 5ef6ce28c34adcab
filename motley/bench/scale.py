"""Cost as a federation grows: clients per round from 10 to 10,000, and populations up to a million.

Rounds are those of a real run, from selection to the new global model, without evaluation. Clients hold few samples, so
that what each one costs beside its arithmetic shows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from motley.bench.memory_use import held_bytes, peak_mb
from motley.core.errors import UnknownNameError
from motley.core.keys import Key
from motley.data.dataset import Dataset, Scaling
from motley.data.federated import FederatedData, Partition
from motley.engine.device import pick
from motley.fleet import Fleet
from motley.nets.zoo import build
from motley.runtime.experiment import Given, prepare
from motley.runtime.launch import Run
from motley.runtime.recipe import load

Row = dict[str, Any]
COHORTS = (10, 50, 200, 1000, 3000, 10_000)
POPULATIONS = (1000, 10_000, 100_000, 1_000_000)
WARMUP = 2
FEW = 500


class Task(NamedTuple):
    """A model and what each client trains."""

    name: str
    model: str
    samples: int
    epochs: int
    batch_size: int


TASKS = (
    Task("logistic", "logistic", 20, 5, 10),
    Task("cnn", "cnn_ama(channels=[4, 8], hidden=[32])", 20, 1, 10),
)


def shared_data(population: int, samples: int, n: int = 6000) -> FederatedData:
    """Random images of MNIST's size; every client holds ``samples`` of the same few thousand."""
    rng = Key.root(0).fold("scale").generator()
    x = torch.from_numpy(rng.integers(0, 256, (n, 1, 28, 28), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, n))
    dataset = Dataset("random", x, y, x[:1], y[:1], 10, Scaling(1 / 255, 0.5, 0.25), "image")
    index = rng.integers(0, n, population * samples)
    return FederatedData(dataset, Partition(index, np.arange(population + 1) * samples, shared=True))


def make_run(task: Task, population: int, cohort: int, rounds: int, device: str) -> Run:
    """A run of the batched executor."""
    data = shared_data(population, task.samples)
    net = build(task.model, data.dataset.input_shape, 10, 0, Key.root(1))
    recipe = load(
        {
            "clients": population,
            "cohort": cohort,
            "epochs": float(task.epochs),
            "batch_size": task.batch_size,
            "rounds": rounds,
            "lr": 0.05,
            "executor": "batched",
            "device": device,
            "workers": 1,
        }
    )
    return Run(prepare(recipe, Given(data, net, fleet=Fleet.ideal(population, Key.root(2)))))


def seconds_of_rounds(run: Run) -> list[float]:
    """How long each round took."""
    stamps = [time.perf_counter()]

    def stamp(*_: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        stamps.append(time.perf_counter())

    run.bare_rounds(stamp)
    return [b - a for a, b in pairwise(stamps)]


def by_cohort(task: Task, cohort: int, rounds: int, device: str) -> Row:
    """One round of so many clients."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    run = make_run(task, max(10_000, cohort), cohort, WARMUP + rounds, device)
    try:
        seconds = statistics.median(seconds_of_rounds(run)[WARMUP:])
    finally:
        run.close()
    steps = cohort * task.epochs * -(-task.samples // task.batch_size)
    return {
        "case": task.name,
        "executor": "batched",
        "device": device,
        "clients_per_round": cohort,
        "population": run.fed.n_clients,
        "ms_per_round": _short(1000 * seconds),
        "client_steps_per_s": _short(steps / seconds),
        "ratio_to_bare_loop": None,  # `bench engine` measures these two
        "ratio_to_floor": None,
        "us_per_client_step": _short(1e6 * seconds / steps),
        "peak_mb": _short(peak_mb(device)),
        "bytes_per_idle_client": None,
    }


def by_population(task: Task, population: int, rounds: int, device: str, cohort: int = 50) -> Row:
    """The same small round in a large population, and what each idle client takes beside its samples."""
    run = make_run(task, population, cohort, WARMUP + rounds, device)
    try:
        seconds = statistics.median(seconds_of_rounds(run)[WARMUP:])
    finally:
        run.close()
    idle = (_beside_samples(run) - _beside_samples(_few(task, cohort, device))) / (population - FEW)
    steps = cohort * task.epochs * -(-task.samples // task.batch_size)
    return {
        "case": f"{task.name}, population",
        "executor": "batched",
        "device": device,
        "clients_per_round": cohort,
        "population": population,
        "ms_per_round": _short(1000 * seconds),
        "client_steps_per_s": _short(steps / seconds),
        "ratio_to_bare_loop": None,  # `bench engine` measures these two
        "ratio_to_floor": None,
        "us_per_client_step": _short(1e6 * seconds / steps),
        "peak_mb": _short(peak_mb("cpu")),
        "bytes_per_idle_client": _short(idle),
    }


def _few(task: Task, cohort: int, device: str) -> Run:
    """The same run with few clients, to tell what does not grow with their number."""
    run = make_run(task, FEW, min(cohort, FEW), WARMUP + 1, device)
    seconds_of_rounds(run)
    run.close()
    return run


def _beside_samples(run: Run) -> int:
    """Bytes that a run holds after its rounds, without the lists of who holds which sample."""
    return held_bytes(run) - run.experiment.data.partition.index.nbytes


def scale(
    cases: Sequence[str] = (),
    device: str = "auto",
    rounds: int = 3,
    largest_cohort: int = COHORTS[-1],
    largest_population: int = POPULATIONS[-1],
    tell: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Rows for growing cohorts of each task, then for growing populations."""
    device = pick(device)
    chosen = _chosen(cases)
    rows: list[Row] = []
    if TASKS[0] in chosen:
        for population in _up_to(POPULATIONS, largest_population):
            tell(f"population {population}")
            rows.append(by_population(TASKS[0], population, rounds, device))
    for task in chosen:
        for cohort in _up_to(COHORTS, largest_cohort):
            tell(f"{task.name}, {cohort} clients per round")
            rows.append(by_cohort(task, cohort, rounds, device))
    return rows


def _chosen(names: Sequence[str]) -> list[Task]:
    """Tasks by name; all of them without names."""
    known = {task.name: task for task in TASKS}
    for name in names:
        if name not in known:
            raise UnknownNameError("case of growth", name, known)
    return [task for task in TASKS if not names or task.name in names]


def _up_to(sizes: Sequence[int], largest: int) -> list[int]:
    return [size for size in sizes if size <= largest]


def flatness(rows: Sequence[Row], case: str) -> float | None:
    """Slowest over quickest client-step from 50 to 1000 clients per round."""
    own = [row for row in rows if row["case"] == case and 50 <= row["clients_per_round"] <= 1000]
    found = [row["us_per_client_step"] for row in own]
    return _short(max(found) / min(found)) if len(found) > 1 else None


def plot(rows: Sequence[Row], path: Path) -> Path:
    """Time per client-step against clients per round, and memory per idle client against the population."""
    from motley.report.pictures import drawing, save

    with drawing() as plt:
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
        _cohorts(left, rows)
        _populations(right, [row for row in rows if row["case"].endswith("population")])
        for axes in (left, right):
            axes.grid(color="0.9", linewidth=0.7)
        return save(figure, path)


def _cohorts(axes: Any, rows: Sequence[Row]) -> None:
    from motley.report.plots import COLOURS

    for colour, task in zip(COLOURS, TASKS, strict=False):
        own = [row for row in rows if row["case"] == task.name]
        times = [row["us_per_client_step"] for row in own]
        axes.plot([row["clients_per_round"] for row in own], times, "o-", color=colour, label=task.name)
    axes.set(xscale="log", yscale="log", xlabel="clients per round", ylabel="µs per client-step")
    axes.legend(frameon=False)


def _populations(axes: Any, rows: Sequence[Row]) -> None:
    from motley.report.plots import COLOURS

    axes.plot([row["population"] for row in rows], [row["ms_per_round"] for row in rows], "o-", color=COLOURS[0])
    axes.set(xscale="log", xlabel="clients in the population", ylabel="ms per round of 50", ylim=(0, None))
    most = max((row["bytes_per_idle_client"] for row in rows), default=None)
    if most is not None:
        axes.set_title(f"an idle client takes {most:.0f} bytes beside its samples", fontsize=10, color="0.35")


def _short(value: float) -> float:
    return float(f"{value:.4g}")
