"""Schedules of the learning rate: ``lr_schedule=warm_up(rounds=5)+cosine``, factors that multiply the rate, by round.

A factory gives a function of the round (counted from 1); ``total`` is how many rounds the run has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from motley.core.errors import InputError
from motley.core.ranges import Count, Positive, Share
from motley.core.registry import Registry, parse
from motley.core.schedule import Schedule, value_at

Factor = Callable[[int], float]

SCHEDULES: Registry[Factor] = Registry("schedule")
"""Factories of factors; add your own with ``@SCHEDULES.add(hidden=("total",))``."""
HIDDEN = ("total",)


@SCHEDULES.add(hidden=HIDDEN)
def cosine(total: int, rounds: Count | None = None, final: Share = 0.0) -> Factor:
    """Falls from 1 along half a cosine to ``final`` after the last round, or after so many."""
    n = rounds or total
    return lambda t: final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, (t - 1) / n)))


@SCHEDULES.add(hidden=HIDDEN)
def linear(total: int, rounds: Count | None = None, final: Share = 0.0) -> Factor:
    """Falls from 1 in a straight line to ``final`` after the last round, or after so many."""
    n = rounds or total
    return lambda t: 1.0 + (final - 1.0) * min(1.0, (t - 1) / n)


@SCHEDULES.add(hidden=HIDDEN)
def steps(total: int, at: list[int], factor: Positive = 0.1) -> Factor:
    """Multiplied by ``factor`` from each of these rounds on."""
    if not at or min(at) < 1:
        raise InputError(f"The schedule 'steps' needs rounds from 1 on, at=[30, 60], not {at}.")
    return lambda t: float(factor ** sum(t >= one for one in at))


@SCHEDULES.add(hidden=HIDDEN)
def warm_up(total: int, rounds: Count = 5) -> Factor:
    """Grows in equal steps, to the whole rate in round ``rounds``."""
    return lambda t: min(1.0, t / rounds)


def factors(spec: str | None, total: int) -> tuple[Factor, ...]:
    """The factors that a short form names."""
    if spec is None:
        return ()
    return tuple(SCHEDULES.make(call.name, total, **call.arguments) for call in parse(spec, "schedule"))


GIVEN = "given"
"""What a recipe calls a schedule that is a function given in Python."""


def needs_the_end(spec: str | None) -> bool:
    """Whether a schedule depends on how many rounds a run has."""
    calls = [] if spec is None or spec == GIVEN else parse(spec, "schedule")
    return any(SCHEDULES[c.name].parameters.get("rounds", 0) is None and "rounds" not in c.arguments for c in calls)


@dataclass(frozen=True)
class LearningRate:
    """A rate by round: a number or a function of the round, times all factors; it must be positive."""

    base: Schedule
    factors: tuple[Factor, ...] = ()

    def __call__(self, t: int) -> float:
        value = value_at(self.base, t)
        for factor in self.factors:
            value *= factor(t)
        if not 0.0 < value < math.inf:
            raise InputError(f"The learning rate of round {t} is {value:g}; a schedule must stay above 0.")
        return value
