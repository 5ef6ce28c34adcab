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
from motley.fleet.timing import task_timing
from motley.protocol.carrier import EMPTY_SECONDS

_LOOKS = 100_000_000  # how often it is asked whether a client is there, at most
_FEWEST = 50  # rounds that are rehearsed however many clients there are
_CLIENT_ROUNDS = 20_000_000  # how many (client, round) pairs the rates are taken from, at most

Array = NDArray[np.float64]


class Work(NamedTuple):
    """The task every client is asked to do."""

    sizes: NDArray[np.int64]  # [N] samples
    epochs: float
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
    participation: NDArray[np.int64]  # [N] complete and timely updates each client would have given, if always asked
    round_times: Array  # [rounds] seconds, under the recipe's deadline
    task_times: Array  # seconds of sampled tasks
    stages: dict[str, float]  # mean share of a task's seconds: download, compute, upload, delay
    outlooks: tuple[Outlook, ...]
    rounds: int  # rehearsed, also those in which nobody was there
    cohorts: tuple[NDArray[np.int64], ...]  # ids drawn in each rehearsed round

    @property
    def participation_entropy(self) -> float:
        """Entropy of who contributes, over that of everybody alike: 1 is fair, 0 is one client alone."""
        return normalised_entropy(self.participation)


def normalised_entropy(counts: NDArray[np.int64]) -> float:
    """H(q) / log N of the shares q behind some counts [N]; 0 where nobody contributes.

    A large population is seen in few rounds, where the entropy of the counts themselves would be far too low; so it is
    estimated as Chao and Shen (2003) do: with the coverage C = 1 - (counts of one) / (sum of counts) and p = C * share,
    H = - sum p log p / (1 - (1 - p)^n).
    """
    seen = counts[counts > 0].astype(np.float64)
    n = seen.sum()
    if n == 0 or len(counts) == 1:
        return float(n > 0)
    singles = min((seen == 1).sum(), n - 1)
    p = (1.0 - singles / n) * seen / n
    entropy = -(p * np.log(p) / -np.expm1(n * np.log1p(-p * (1 - 1e-15)))).sum()
    return float(np.clip(entropy / np.log(len(counts)), 0.0, 1.0))


class _Tasks(NamedTuple):
    """Tasks of some clients in one round: [K] each."""

    seconds: Array
    complete: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    stages: Array  # [4] summed seconds of download, compute, upload, delay


def _tasks(fleet: Fleet, work: Work, clients: NDArray[np.int64], fates: Fates) -> _Tasks:
    done = fates.affordable >= work.epochs
    timing = task_timing(
        fleet,
        clients,
        flops=work.flops_per_sample * np.minimum(work.epochs, fates.affordable) * work.sizes[clients],
        bytes_down=work.model_bytes,
        bytes_up=np.where(done, work.model_bytes, 0.0),
        delay=fates.delay,
    )
    complete = done & ~fleet.limited[clients] & (fates.delay_rounds == 0)
    return _Tasks(timing.total, complete, fates.lost, np.array([stage.sum() for stage in timing]))


def _lasts(tasks: _Tasks, deadline: float | None) -> float:
    """Seconds of a round: until the last of the cohort is through (or known to have failed), or the deadline."""
    longest = float(tasks.seconds.max())
    return longest if deadline is None else min(deadline, longest)


class _Rates:
    """Sums over the whole population in some rounds."""

    def __init__(self, n_clients: int) -> None:
        self.rounds = 0
        self.there = self.lost = self.dropped = self.stragglers = 0
        self.causes = dict.fromkeys(("limited", "workload", "deadline", "late"), 0)
        self.participation = np.zeros(n_clients, np.int64)

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
        self.participation[ids] += ~late & ~fates.lost


def forecast(fleet: Fleet, work: Work, *, cohort: int, rounds: int, key: Key) -> Forecast:
    """Rehearses rounds of uniform cohorts on a fleet; fewer than asked for where clients are very many."""
    _check(fleet, work, cohort, rounds)
    rounds = min(rounds, max(_FEWEST, _LOOKS // fleet.n_clients))
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
    return _summarise(fleet, work, rates, played, tuple(cohorts), rounds)


def _play(
    fleet: Fleet, work: Work, cohort: int, rounds: int, key: Key
) -> Iterator[tuple[int, NDArray[np.bool_], NDArray[np.int64], _Tasks | None]]:
    """Round by round: who is there, who is drawn, and what becomes of their tasks (None where nobody is there)."""
    now = 0.0
    for round_index in range(1, rounds + 1):
        here = fleet.present(round_index, now)
        there = np.flatnonzero(here)
        if len(there) == 0:
            now += EMPTY_SECONDS
            yield round_index, here, there, None
            continue
        rng = key.fold("cohort", round_index).generator()
        ids = rng.choice(there, min(cohort, len(there)), replace=False, shuffle=False)
        tasks = _tasks(fleet, work, ids, fleet.fates(ids, round_index))
        yield round_index, here, ids, tasks
        now += _lasts(tasks, work.deadline)


def _summarise(
    fleet: Fleet,
    work: Work,
    rates: _Rates,
    played: list[_Tasks],
    cohorts: tuple[NDArray[np.int64], ...],
    rounds: int,
) -> Forecast:
    if not played:
        raise InputError(
            f"In none of the {rounds} rounds looked at is any of the {fleet.n_clients} clients there; "
            "choose a fleet in which clients can be reached."
        )
    population = rates.rounds * fleet.n_clients
    seconds = np.concatenate([tasks.seconds for tasks in played])
    stages = np.sum([tasks.stages for tasks in played], axis=0)
    return Forecast(
        straggler_rate=rates.stragglers / max(1, rates.there),
        straggler_causes={name: number / max(1, rates.there) for name, number in rates.causes.items()},
        dropout_rate=rates.dropped / population,
        absence_rate=1.0 - rates.there / population,
        loss_rate=rates.lost / max(1, rates.there),
        participation=rates.participation,
        round_times=np.array([_lasts(tasks, work.deadline) for tasks in played]),
        task_times=seconds,
        stages=dict(zip(("download", "compute", "upload", "delay"), (stages / stages.sum()).tolist(), strict=True)),
        outlooks=tuple(_outlooks(work, played, seconds)),
        rounds=rounds,
        cohorts=cohorts,
    )


def _outlooks(work: Work, played: list[_Tasks], seconds: Array) -> Iterator[Outlook]:
    """The recipe's deadline, none, and those at which half, most and nearly all tasks would be done."""
    deadlines: dict[str, float | None] = {"wait for all": None}
    for share in (95, 80, 50):
        at = float(np.quantile(seconds, share / 100))
        if at < min((d for d in deadlines.values() if d is not None), default=float(seconds.max())) * (1 - 1e-6):
            deadlines[f"{share} % of tasks"] = at
    if work.deadline is not None:
        deadlines["recipe"] = work.deadline
    for name, deadline in deadlines.items():
        limit = np.inf if deadline is None else deadline
        times = [_lasts(tasks, deadline) for tasks in played]
        done = [tasks.complete & ~tasks.lost & (tasks.seconds <= limit * (1 + 1e-9)) for tasks in played]
        yield Outlook(name, deadline, float(np.mean(times)), float(np.concatenate(done).mean()))


def _check(fleet: Fleet, work: Work, cohort: int, rounds: int) -> None:
    if len(work.sizes) != fleet.n_clients:
        raise InputError(f"The data have {len(work.sizes)} clients but the fleet {fleet.n_clients}; they must agree.")
    for name, value in {"cohort": cohort, "rounds": rounds}.items():
        if value < 1:
            raise InputError(f"The {name} is {value}; it must be at least 1.")
    for name, number in {"epochs": work.epochs, "deadline": work.deadline}.items():
        if number is not None and number <= 0:
            raise InputError(f"The {name} is {number:g}; it must be above 0.")
