"""What was measured, looked up: times of a place, and how many times as long one takes as another, with an interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from motley.bench.kernel_study.study_case import CASES
from motley.bench.kernel_study.study_record import Measured, Outcome, Unit, median_and_quartiles
from motley.bench.kernel_study.study_ways import BASE
from motley.reproduce.claims import interval

DACE = "dace"  # the quicker of DaCe's ways


class Place(NamedTuple):
    """A way of a unit."""

    kernel: str
    size: str
    way: str
    threads: int


class Ratio(NamedTuple):
    """How many times as long one takes as another: geometric mean over the passes, and its 95 % interval."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.3g} ({self.low:.3g} to {self.high:.3g})"


class StudyTable:
    """All units of one device."""

    def __init__(
        self, units: Iterable[Measured], device: str, cores: int, extras: Mapping[str, Any] | None = None
    ) -> None:
        self.device, self.cores = device, cores
        self.units = {one.unit.key: one for one in units if one.unit.device == device}
        self.extras = dict(extras or {})

    def unit(self, kernel: str, size: str, threads: int) -> Measured | None:
        return self.units.get(Unit(kernel, size, threads, self.device).key)

    def threads(self, kernel: str, size: str) -> list[int]:
        """The numbers of threads that a kernel was measured with."""
        found = [one.unit for one in self.units.values() if (one.unit.kernel, one.unit.size) == (kernel, size)]
        return sorted(unit.threads for unit in found)

    def outcome(self, place: Place) -> Outcome | None:
        """A way that is right and was timed."""
        unit = self.unit(place.kernel, place.size, place.threads)
        if unit is None:
            return None
        ways = ("dace range", "dace map") if place.way == DACE else (place.way,)
        found = [one for way in ways if (one := unit.find(way)) is not None and one.samples]
        return min(found, key=lambda one: statistics.median(one.samples), default=None)

    def ratio(self, slow: Place, quick: Place) -> Ratio | None:
        """Passes of one unit are compared pair by pair; those of different units by their means."""
        one, other = self.outcome(slow), self.outcome(quick)
        if one is None or other is None:
            return None
        a, b = _logs(one.samples), _logs(other.samples)
        if (slow.kernel, slow.size, slow.threads) == (quick.kernel, quick.size, quick.threads):
            return _exponential([x - y for x, y in zip(a, b, strict=False)])
        return _welch(a, b)

    def speed(self, place: Place) -> Ratio | None:
        """How many times as fast as NumPy."""
        return self.ratio(place._replace(way=BASE), place)

    def share(self, place: Place, bandwidth: float | None) -> float | None:
        """The bytes a kernel must move, per second, as a share of what a large copy moves."""
        found = self.outcome(place)
        if found is None or not bandwidth:
            return None
        case = CASES[place.kernel]
        middle, _, _ = median_and_quartiles(found.samples)
        return case.traffic(case.sizes[place.size]) / middle / bandwidth

    def bandwidth(self, threads: int) -> float | None:
        facts = self.extras.get(f"facts/{self.device}/{threads}", {})
        value = facts.get("bandwidth")
        return None if value is None else float(value)

    def sizes(self, group: str) -> list[str]:
        """Sizes that were measured of a group, the smallest first."""
        found = {one.unit.size for one in self.units.values() if CASES[one.unit.kernel].group == group}
        return [size for size in ("tiny", "small", "medium") if size in found]

    def kernels(self, group: str) -> list[str]:
        found = {one.unit.kernel for one in self.units.values()}
        return [name for name, case in CASES.items() if case.group == group and name in found]

    def ways(self, group: str) -> list[str]:
        """Ways that gave a time for a kernel of a group, in the order of the study."""
        found: dict[str, None] = {}
        for one in self.units.values():
            if CASES[one.unit.kernel].group == group:
                found.update({outcome.way: None for outcome in one.outcomes if outcome.samples})
        return list(found)


def _logs(samples: Sequence[float]) -> list[float]:
    return [math.log(value) for value in samples]


def _exponential(differences: Sequence[float]) -> Ratio | None:
    if not differences:
        return None
    low, high = interval(list(differences))
    middle = math.exp(statistics.fmean(differences))
    return Ratio(middle, *(math.nan if end is None else math.exp(end) for end in (low, high)))


def _welch(a: Sequence[float], b: Sequence[float]) -> Ratio | None:
    """The interval of a difference of means with unequal variances, by the smaller number of degrees of freedom."""
    if len(a) < 2 or len(b) < 2:
        return None
    from scipy.stats import t

    difference = statistics.fmean(a) - statistics.fmean(b)
    error = math.sqrt(statistics.variance(a) / len(a) + statistics.variance(b) / len(b))
    half = float(t.ppf(0.975, min(len(a), len(b)) - 1)) * error
    return Ratio(*(math.exp(value) for value in (difference, difference - half, difference + half)))
