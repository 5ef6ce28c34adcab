"""How heterogeneous an experiment is, before a single step is trained: data and fleet in one description."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from motley.core.keys import Key
from motley.data import analytics
from motley.data.federated import FederatedData
from motley.fleet.fleet import Fleet
from motley.nets.cost import flops
from motley.report.advice import Advice, advise, percent, seconds
from motley.report.forecast import Forecast, Outlook, Work, forecast
from motley.runtime.experiment import Experiment

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_ROWS = 64  # clients whose label mix is kept for pictures
_BINS = 32


@dataclass(frozen=True)
class Histogram:
    """Counts between edges, equally wide on a plain or a logarithmic scale."""

    edges: tuple[float, ...]  # [B + 1]
    counts: tuple[int, ...]  # [B]
    log: bool = False

    @classmethod
    def of(cls, values: NDArray[Any]) -> Histogram:
        low, high = float(values.min()), float(values.max())
        log = low > 0 and high / low > 20.0
        if high <= low * (1 + 1e-9):
            return cls((low, high), (len(values),))
        bins = int(np.clip(2 * len(values) ** (1 / 3), 8, _BINS))  # Rice's rule
        if not log and np.issubdtype(values.dtype, np.integer):
            width = -(-(high - low + 1) // bins)  # whole numbers stay whole
            edges = np.arange(low, high + width + 1, width) - 0.5
        else:
            edges = (np.geomspace if log else np.linspace)(low, high, bins + 1)
            edges[0], edges[-1] = low, high  # exactly, whatever the rounding
        return cls(tuple(edges.tolist()), tuple(np.histogram(values, edges)[0].tolist()), log)


@dataclass(frozen=True)
class Description:
    """Everything `motley describe` says. Rates and shares are from 0 to 1, times in seconds of the virtual clock."""

    dataset: str
    fleet: tuple[str, ...]  # its layers
    cohort: int
    epochs: float
    batch_size: int
    deadline: float | None
    rounds: int  # rehearsed

    clients: int
    samples: int
    classes: int
    size_min: int
    size_max: int
    size_mean: float
    size_std: float
    gini: float  # of sizes: 0 is equal, 1 is all with one
    c_score: float  # mean L1 distance of a client's label mix to the whole: 0 to 2
    emd: float  # the same, weighted by size
    js: float  # mean Jensen-Shannon divergence of two clients, in bits: 0 to 1
    kl: float  # mean Kullback-Leibler divergence of two clients' smoothed mixes, in bits
    classes_per_client: float  # mean number of classes a client holds
    clients_below_batch: float  # share of clients with less than one minibatch

    classes_missed_by_cohort: float  # mean share of the classes that nobody in a cohort holds
    cohorts_missing_a_class: float  # share of cohorts that miss at least one
    straggler_rate: float  # of clients that are there: cannot deliver the whole task in its round
    straggler_causes: dict[str, float]
    dropout_rate: float  # of all clients: away, or the update is lost
    absence_rate: float
    loss_rate: float
    participation_entropy: float  # of complete and timely updates over clients: 1 is everybody alike
    round_time: float  # mean, under the recipe's deadline
    round_time_quantiles: dict[str, float]
    task_time_quantiles: dict[str, float]
    speed_quantiles: dict[str, float]  # training samples per second
    speed_ratio: float  # 95 % quantile over 5 % quantile
    stages: dict[str, float]  # share of a task's time: download, compute, upload, delay
    deadlines: tuple[Outlook, ...]

    mix: tuple[float, ...]  # [C] label mix of all data
    mixes: tuple[tuple[float, ...], ...]  # label mixes of some clients, by their main class
    size_histogram: Histogram
    speed_histogram: Histogram
    round_time_histogram: Histogram
    task_time_histogram: Histogram

    @property
    def advice(self) -> tuple[Advice, ...]:
        """Findings and remedies in plain words."""
        return advise(self)

    @property
    def summary(self) -> str:
        """The whole in three sentences."""
        sizes = f"{self.size_min:,}" if self.size_min == self.size_max else f"{self.size_min:,} to {self.size_max:,}"
        held = f"{self.classes_per_client:.1f} of {self.classes} classes"
        until = (
            "waits for the slowest" if self.deadline is None else f"ends after {seconds(self.deadline)} at the latest"
        )
        return (
            f"{self.clients:,} clients hold {sizes} samples each, {held} on average. "
            f"A round of {min(self.cohort, self.clients):,} takes {seconds(self.round_time)} and {until}. "
            f"Of the clients that are there {percent(self.straggler_rate)} cannot deliver the whole task in its round; "
            f"{percent(self.dropout_rate)} of all are away or lose their update."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dicts."""
        content = asdict(self)
        content["deadlines"] = [outlook._asdict() for outlook in self.deadlines]
        content["summary"] = self.summary
        content["advice"] = [advice._asdict() for advice in self.advice]
        plain: dict[str, Any] = _plain(content)
        return plain

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(self.to_dict(), allow_nan=False)


def _plain(value: Any) -> Any:
    """JSON knows no NaN and no infinity: null."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def describe(
    data: FederatedData,
    fleet: Fleet,
    *,
    cohort: int,
    epochs: float,
    batch_size: int,
    flops_per_sample: float,
    model_bytes: int,
    deadline: float | None = None,
    rounds: int = 200,
    key: Key,
) -> Description:
    """Describes data and fleet as a run with these settings would meet them.

    flops_per_sample: forward and backward pass of the whole model. rounds: how many are rehearsed (without training).
    """
    sizes = data.sizes
    key = key.fold("describe")
    work = Work(sizes, epochs, flops_per_sample, model_bytes, deadline)
    world = forecast(fleet, work, cohort=cohort, rounds=rounds, key=key)
    speeds = fleet.flops / flops_per_sample
    slow, fast = np.quantile(speeds, (0.05, 0.95))
    return Description(
        dataset=data.dataset.name,
        fleet=tuple(dict.fromkeys(fleet.layers)),
        cohort=cohort,
        epochs=epochs,
        batch_size=batch_size,
        deadline=deadline,
        rounds=world.rounds,
        **_data_numbers(data, batch_size, key),
        **_cohort_numbers(data, fleet, world, cohort, key),
        **_world_numbers(world),
        speed_quantiles=_quantiles(speeds),
        speed_ratio=float(fast / slow),
        size_histogram=Histogram.of(sizes),
        speed_histogram=Histogram.of(speeds),
        round_time_histogram=Histogram.of(world.round_times),
        task_time_histogram=Histogram.of(world.task_times),
    )


def describe_experiment(experiment: Experiment, rounds: int = 200) -> Description:
    """Describes what a recipe names, with its model's costs and its schedule."""
    recipe = experiment.recipe
    return describe(
        experiment.data,
        experiment.fleet,
        cohort=recipe.cohort,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        flops_per_sample=flops(experiment.cost, 0),
        model_bytes=4 * experiment.net.size,
        deadline=recipe.deadline,
        rounds=rounds,
        key=experiment.key,
    )


def _data_numbers(data: FederatedData, batch_size: int, key: Key) -> dict[str, Any]:
    labels, sizes = data.labels, data.sizes
    mix = labels.sum(0, dtype=np.int64)
    return {
        "clients": data.n_clients,
        "samples": int(sizes.sum()),
        "classes": data.n_classes,
        **analytics.size_statistics(sizes)._asdict(),
        "gini": analytics.gini(sizes),
        "c_score": analytics.c_score(labels),
        "emd": analytics.emd(labels),
        "js": analytics.jensen_shannon(labels, key),
        "kl": analytics.kullback_leibler(labels, key),
        "classes_per_client": float((labels > 0).sum(1).mean()),
        "clients_below_batch": float((sizes < batch_size).mean()),
        "mix": tuple((mix / mix.sum()).tolist()),
        "mixes": tuple(tuple(row) for row in sample_mixes(labels, _ROWS).tolist()),
    }


def sample_mixes(labels: NDArray[np.int32], rows: int) -> NDArray[np.float64]:
    """Label mixes of up to ``rows`` clients, evenly chosen, ordered by their main class: [R, C]."""
    chosen = np.unique(np.linspace(0, len(labels) - 1, min(rows, len(labels))).round().astype(np.int64))
    mixes = labels[chosen] / labels[chosen].sum(1, keepdims=True)
    main = mixes.argmax(1)
    return np.asarray(mixes[np.lexsort((-mixes.max(1), main))], np.float64)


def _cohort_numbers(data: FederatedData, fleet: Fleet, world: Forecast, cohort: int, key: Key) -> dict[str, Any]:
    """How many of the classes that exist are missing in cohorts: of all clients, or of those that were there."""
    if not fleet.presence:
        k = min(cohort, data.n_clients)
        missed = analytics.classes_missed(data.labels, k)
        any_missed = analytics.cohorts_missing_a_class(data.labels, k, key)
    else:
        exists = data.labels.sum(0, dtype=np.int64) > 0
        held = np.stack([np.any(data.labels[ids] > 0, axis=0) for ids in world.cohorts])[:, exists]
        missed, any_missed = float(1.0 - held.mean()), float((~held.all(1)).mean())
    return {"classes_missed_by_cohort": missed, "cohorts_missing_a_class": any_missed}


def _world_numbers(world: Forecast) -> dict[str, Any]:
    return {
        "straggler_rate": world.straggler_rate,
        "straggler_causes": world.straggler_causes,
        "dropout_rate": world.dropout_rate,
        "absence_rate": world.absence_rate,
        "loss_rate": world.loss_rate,
        "participation_entropy": world.participation_entropy,
        "round_time": float(world.round_times.mean()),
        "round_time_quantiles": _quantiles(world.round_times),
        "task_time_quantiles": _quantiles(world.task_times),
        "stages": world.stages,
        "deadlines": world.outlooks,
    }


def _quantiles(values: NDArray[np.float64]) -> dict[str, float]:
    found = np.quantile(values, QUANTILES)
    return {f"{share:.0%}": float(value) for share, value in zip(QUANTILES, found, strict=True)}
