"""What a reproduction compares, by name: each a number of one finished run."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

from motley.core.registry import Registry, parse
from motley.reproduce.results import Finished

METRICS: Registry[float | None] = Registry("metric")
"""Factories ``f(run: Finished, **arguments) -> number or None``; the short form is ``name(key=value)``.

``within`` says where values can lie, if not everywhere.
"""

PERCENT, POSITIVE, SHARE = (0.0, 100.0), (0.0, math.inf), (0.0, 1.0)


def measure(spec: str, run: Finished) -> float | None:
    """A metric of a run; None where the run does not tell."""
    (call,) = parse(spec, "metric")
    return METRICS.make(call.name, run, **call.arguments)


def bounds(spec: str) -> tuple[float, float]:
    """Where the values of a metric can lie."""
    (call,) = parse(spec, "metric")
    low, high = METRICS[call.name].meta.get("within", (-math.inf, math.inf))
    return low, high


@METRICS.add(hidden=("run",), within=PERCENT)
def accuracy(run: Finished) -> float | None:
    """Test accuracy after the last round, in percent."""
    return 100.0 * float(run.summary["accuracy"])


@METRICS.add(hidden=("run",), within=PERCENT)
def best_accuracy(run: Finished) -> float | None:
    """The best test accuracy of all rounds, in percent."""
    return 100.0 * float(run.summary["best_accuracy"])


@METRICS.add(hidden=("run",), within=PERCENT)
def mean_accuracy(run: Finished, last: int = 10) -> float | None:
    """Mean test accuracy of the last evaluated rounds, in percent."""
    return 100.0 * statistics.fmean(run.accuracy[-last:])


@METRICS.add(hidden=("run",), within=POSITIVE)
def stability(run: Finished, last: int = 50) -> float | None:
    """Variance of the test accuracy (in percent) over the last evaluated rounds; small is good."""
    values = [100.0 * value for value in run.accuracy[-last:]]
    return statistics.variance(values) if len(values) > 1 else None


@METRICS.add(hidden=("run",), within=POSITIVE)
def rounds_to(run: Finished, target: float = 0.8, capped: bool = False) -> float | None:
    """The first round with at least this test accuracy (a fraction).

    Where it was not reached: None, or with ``capped`` the number of rounds, the least it can be.
    """
    reached = (number for number, value in zip(run.rounds, run.accuracy, strict=True) if value >= target)
    found = next(reached, run.rounds[-1] if capped and run.rounds else None)
    return None if found is None else float(found)


@METRICS.add(hidden=("run",), within=PERCENT)
def validated(run: Finished, score: str = "") -> float | None:
    """Test score, times 100, of the round that is best on validation data.

    ``score`` is accuracy, macro_f1, weighted_f1 or auc; if none is given, that which RADFed reports for the data: F1
    (weighted by class) for Covertype, the area under the ROC curve for eICU, accuracy elsewhere.
    """
    data = run.recipe.get("data", "").split("(")[0]
    goal = score or {"covertype": "weighted_f1", "eicu": "auc"}.get(data, "accuracy")
    found = run.summary.get("validated", {}).get(goal)
    return None if found is None else 100.0 * float(found["test"])


@METRICS.add(hidden=("run",), within=POSITIVE)
def wobble(run: Finished, name: str = "validation_accuracy") -> float | None:
    """Mean change of a score (times 100) from one evaluation to the next in the second half of a run; small is good."""
    values = run.extra.get(name, [])
    known = _known(values[len(values) // 2 :])
    return 100.0 * statistics.fmean(abs(b - a) for a, b in pairwise(known)) if len(known) > 1 else None


@METRICS.add(hidden=("run",))
def recorded(run: Finished, name: str, last: int = 0) -> float | None:
    """Mean of a diagnostic's number over all rounds, or the last ones; none where it had stopped telling."""
    known = _known(run.extra.get(name, [])[-last:])
    return statistics.fmean(known) if known else None


def _known(values: list[float | None]) -> list[float]:
    """The values, or no value where one of them is missing."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


@METRICS.add(hidden=("run",))
def summary(run: Finished, name: str) -> float | None:
    """A number of the run's summary."""
    value = run.summary.get(name)
    return float(value) if isinstance(value, int | float) else None


@METRICS.add(hidden=("run",), within=PERCENT)
def straggler_rate(run: Finished) -> float | None:
    """Tasks whose client sent less than it was asked for (or nothing), in percent."""
    return 100.0 * float(run.summary["stragglers_rate"]) if "stragglers_rate" in run.summary else None


@METRICS.add(hidden=("run",), within=PERCENT)
def dropout_rate(run: Finished) -> float | None:
    """Tasks whose client sent nothing, in percent."""
    return 100.0 * float(run.summary["dropouts_rate"]) if "dropouts_rate" in run.summary else None


@METRICS.add(hidden=("run",), within=POSITIVE)
def round_length(run: Finished) -> float | None:
    """Mean length of a round in virtual seconds."""
    return run.times[-1] / run.rounds[-1] if run.times else None


@METRICS.add(hidden=("run",), within=POSITIVE)
def time_to(run: Finished, target: float = 0.8, capped: bool = False) -> float | None:
    """Virtual seconds until a test accuracy (a fraction) was first reached.

    Where it was not: None, or with ``capped`` the time of the whole run, the least it can be.
    """
    reached = (time for time, value in zip(run.times, run.accuracy, strict=False) if value >= target)
    return next(reached, run.times[-1] if capped and run.times else None)


@METRICS.add(hidden=("run",), within=POSITIVE)
def participation(run: Finished, group: int = 0) -> float | None:
    """How often clients of a decile of speed were chosen, as a share of the mean; 0 is the slowest, 9 the fastest."""
    shares = by_speed(run)
    return shares[group] if shares else None


def by_speed(run: Finished) -> list[float]:
    """How often clients of each decile of speed were chosen, as a share of the mean; nothing where it is not known."""
    chosen: list[float] = run.summary.get("fairness", {}).get("chosen_by_speed") or []
    return [value * len(chosen) / sum(chosen) for value in chosen] if sum(chosen) else []


@METRICS.add(hidden=("run",))
def advantage(run: Finished) -> float | None:
    """Participation of the fastest decile of clients less that of the slowest."""
    slowest, fastest = participation(run, group=0), participation(run, group=9)
    return None if slowest is None or fastest is None else fastest - slowest


@METRICS.add(hidden=("run",), within=SHARE)
def evenness(run: Finished) -> float | None:
    """Jain's index of how often clients were chosen; 1 is even."""
    found = run.summary.get("fairness", {}).get("jain_chosen")
    return None if found is None else float(found)
