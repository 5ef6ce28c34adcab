"""What a fleet will do to a run before it starts: a rehearsal of rounds without training.

Cohorts are drawn uniformly from the clients that are there, as the default selection does. Rates come from the whole
population (every client that is there, weighted as uniform selection would), round times from the drawn cohorts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from motley.core.errors import InputError
from motley.core.keys import Key
from motley.fleet.fleet import Fates, Fleet
from motley.fleet.timing import samples_of, task_timing

_CLIENT_ROUNDS = 20_000_000  # how many (client, round) pairs the rates are taken from, at most
_WAIT = 60.0  # seconds until the server looks again when nobody is there

Array = NDArray[np.float64]


class Work(NamedTuple):
    """The task every client is asked to do."""

    sizes: NDArray[np.int64]  # [N] samples
    epochs: float
    batch_size: int
    flops_per_sample: float  # forward and backward
    model_bytes: int
    deadline: float | None


class Outlook(NamedTuple):
    """What a deadline would do."""

    name: str
    deadline: float | None  # seconds; None waits for everybody
    round_time: float  # mean seconds
    in_time: float  # share of the cohort whose complete update is there by then


@dataclass(frozen=True)
class Forecast:
    """Expected times and rates of a fleet at a task."""

    straggler_rate: float  # of those there: cannot deliver the whole task in its round
    straggler_causes: dict[str, float]  # limited, workload, deadline, late (a client may have several)
    dropout_rate: float  # of all: not there, or the update is lost
    absence_rate: float
    loss_rate: float
    participation: Array  # [N] share of the complete and timely updates that come from each client
    round_times: Array  # [rounds] seconds, under the recipe's deadline
    task_times: Array  # seconds of sampled tasks
    stages: dict[str, float]  # mean share of a task's seconds: download, compute, upload, delay
    outlooks: tuple[Outlook, ...]
    cohorts: tuple[NDArray[np.int64], ...]  # ids drawn in each rehearsed round

    @property
    def participation_entropy(self) -> float:
        """Entropy of who contributes, over that of everybody alike: 1 is fair, 0 is one client alone."""
        return normalised_entropy(self.participation)


def normalised_entropy(shares: Array) -> float:
    """H(q) / log N for shares q that sum to 1; 0 where nobody contributes, 1 for a single client who does."""
    q = shares[shares > 0]
    if len(shares) == 1 or len(q) == 0:
        return float(len(q))
    return float(-(q * np.log(q)).sum() / np.log(len(shares)))


class _Tasks(NamedTuple):
    """Tasks of some clients in one round: [K] each."""

    seconds: Array
    complete: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    stages: Array  # [4] summed seconds of download, compute, upload, delay


def _tasks(fleet: Fleet, work: Work, clients: NDArray[np.int64], fates: Fates) -> _Tasks:
    epochs = np.minimum(work.epochs, fates.affordable)
    flops = work.flops_per_sample * samples_of(work.sizes[clients], epochs, work.batch_size)
    timing = task_timing(
        fleet, clients, flops=flops, bytes_down=work.model_bytes, bytes_up=work.model_bytes, delay=fates.delay
    )
    complete = (fates.affordable >= work.epochs) & ~fleet.limited[clients] & (fates.delay_rounds == 0)
    return _Tasks(timing.total, complete, fates.lost, np.array([stage.sum() for stage in timing]))


def _lasts(tasks: _Tasks, deadline: float | None) -> float:
    """Seconds of a round: until the last one reports or the deadline; a lost update is waited for until then."""
    if deadline is not None and tasks.lost.any():
        return deadline
    heard = tasks.seconds if tasks.lost.all() else tasks.seconds[~tasks.lost]
    longest = float(heard.max())
    return longest if deadline is None else min(deadline, longest)


class _Rates:
    """Sums over the whole population in some rounds."""

    def __init__(self, n_clients: int) -> None:
        self.rounds = 0
        self.there = self.lost = self.dropped = self.stragglers = 0
        self.causes = dict.fromkeys(("limited", "workload", "deadline", "late"), 0)
        self.participation = np.zeros(n_clients)

    def add(self, fleet: Fleet, work: Work, round_index: int, here: NDArray[np.bool_]) -> None:
        ids = np.flatnonzero(here)
        fates = fleet.fates(ids, round_index)
        tasks = _tasks(fleet, work, ids, fates)
        slow = np.zeros(len(ids), bool) if work.deadline is None else tasks.seconds > work.deadline
        reasons = {
            "limited": fleet.limited[ids],
            "workload": fates.affordable < work.epochs,
            "deadline": slow,
            "late": fates.delay_rounds > 0,
        }
        for name, mask in reasons.items():
            self.causes[name] += int(mask.sum())
        late = ~tasks.complete | slow
        self.rounds += 1
        self.there += len(ids)
        self.lost += int(fates.lost.sum())
        self.dropped += len(here) - len(ids) + int(fates.lost.sum())
        self.stragglers += int(late.sum())
        self.participation[ids] += (~late & ~fates.lost) / max(1, len(ids))


def forecast(fleet: Fleet, work: Work, *, cohort: int, rounds: int, key: Key) -> Forecast:
    """Rehearses rounds of uniform cohorts on a fleet."""
    _check(fleet, work, cohort, rounds)
    rates = _Rates(fleet.n_clients)
    every = max(1, -(-rounds * fleet.n_clients // _CLIENT_ROUNDS))  # a large population is looked at now and then
    played: list[_Tasks] = []
    cohorts: list[NDArray[np.int64]] = []
    for round_index, here, ids, tasks in _play(fleet, work, cohort, rounds, key):
        if round_index % every == 0 or round_index == 1:
            rates.add(fleet, work, round_index, here)
        if tasks is not None:
            played.append(tasks)
            cohorts.append(ids)
    return _summarise(fleet, work, rates, played, tuple(cohorts))


def _play(
    fleet: Fleet, work: Work, cohort: int, rounds: int, key: Key
) -> Iterator[tuple[int, NDArray[np.bool_], NDArray[np.int64], _Tasks | None]]:
    """Round by round: who is there, who is drawn, and what becomes of their tasks (None where nobody is there)."""
    now = 0.0
    for round_index in range(1, rounds + 1):
        here = fleet.present(round_index, now)
        there = np.flatnonzero(here)
        if len(there) == 0:
            now += _WAIT
            yield round_index, here, there, None
            continue
        rng = key.fold("cohort", round_index).generator()
        ids = rng.choice(there, min(cohort, len(there)), replace=False, shuffle=False)
        tasks = _tasks(fleet, work, ids, fleet.fates(ids, round_index))
        yield round_index, here, ids, tasks
        now += _lasts(tasks, work.deadline)


def _summarise(
    fleet: Fleet, work: Work, rates: _Rates, played: list[_Tasks], cohorts: tuple[NDArray[np.int64], ...]
) -> Forecast:
    if not played:
        raise InputError(
            f"In none of the {rates.rounds} rounds looked at is any of the {fleet.n_clients} clients there; "
            "choose a fleet in which clients can be reached."
        )
    population = rates.rounds * fleet.n_clients
    seconds = np.concatenate([tasks.seconds for tasks in played])
    stages = np.sum([tasks.stages for tasks in played], axis=0)
    total = rates.participation.sum()
    return Forecast(
        straggler_rate=rates.stragglers / max(1, rates.there),
        straggler_causes={name: number / max(1, rates.there) for name, number in rates.causes.items()},
        dropout_rate=rates.dropped / population,
        absence_rate=1.0 - rates.there / population,
        loss_rate=rates.lost / max(1, rates.there),
        participation=rates.participation / total if total > 0 else rates.participation,
        round_times=np.array([_lasts(tasks, work.deadline) for tasks in played]),
        task_times=seconds,
        stages=dict(zip(("download", "compute", "upload", "delay"), (stages / stages.sum()).tolist(), strict=True)),
        outlooks=tuple(_outlooks(work, played, seconds)),
        cohorts=cohorts,
    )


def _outlooks(work: Work, played: list[_Tasks], seconds: Array) -> Iterator[Outlook]:
    """The recipe's deadline, none, and those at which half, most and nearly all tasks would be done."""
    deadlines: dict[str, float | None] = {"wait for all": None}
    for share in (95, 80, 50):
        deadlines[f"{share} % of tasks"] = float(np.quantile(seconds, share / 100))
    if work.deadline is not None:
        deadlines["recipe"] = work.deadline
    for name, deadline in deadlines.items():
        limit = np.inf if deadline is None else deadline
        times = [_lasts(tasks, deadline) for tasks in played]
        done = [tasks.complete & ~tasks.lost & (tasks.seconds <= limit) for tasks in played]
        yield Outlook(name, deadline, float(np.mean(times)), float(np.concatenate(done).mean()))


def _check(fleet: Fleet, work: Work, cohort: int, rounds: int) -> None:
    if len(work.sizes) != fleet.n_clients:
        raise InputError(f"The data have {len(work.sizes)} clients but the fleet {fleet.n_clients}; they must agree.")
    for name, value in {"cohort": cohort, "rounds": rounds, "batch size": work.batch_size}.items():
        if value < 1:
            raise InputError(f"The {name} is {value}; it must be at least 1.")
    for name, number in {"epochs": work.epochs, "deadline": work.deadline}.items():
        if number is not None and number <= 0:
            raise InputError(f"The {name} is {number:g}; it must be above 0.")
