"""Any number of a part may be a schedule: a function of the round, frozen at the start of the round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Linear:
    """``start + slope * t``, kept within [low, high]; ``t`` counts rounds from 1."""

    start: float
    slope: float = 0.0
    high: float = float("inf")
    low: float = float("-inf")

    def __call__(self, t: int) -> float:
        return min(self.high, max(self.low, self.start + self.slope * t))


@dataclass(frozen=True)
class Exponential:
    """``start * factor ** t``, kept at or above ``low``."""

    start: float
    factor: float
    low: float = 0.0

    def __call__(self, t: int) -> float:
        return max(self.low, self.start * self.factor**t)


@dataclass(frozen=True)
class Decayed:
    """``start * factor ** (t - 1)``: the first round has ``start`` itself."""

    start: float
    factor: float = 1.0

    def __call__(self, t: int) -> float:
        return self.start * self.factor ** (t - 1)


Schedule = float | Callable[[int], float]


def value_at(number: Schedule, t: int) -> float:
    """The value of a number or schedule in round ``t``."""
    return float(number(t)) if callable(number) else float(number)
