"""What is computed in the study: a kernel by its inputs, its answer in float64, and the least bytes it must move.

Nothing here or in the modules of cases needs more than NumPy: the same files make the same inputs from the same seed
in Motley's environment and in DaCe's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[Any]
Inputs = dict[str, Any]  # arrays, and numbers
Size = Mapping[str, int]
SIZES = ("tiny", "small", "medium")  # tiny is for tests; the study takes the other two unless told


def largest_difference(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """The largest difference of any number, as a share of the largest wanted number of its array."""
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        if one.shape != other.shape:
            return float("inf")
        if other.size:
            scale = float(np.abs(other).max()) or 1.0
            difference = float(np.abs(one.astype(np.float64) - other).max()) / scale
            if not np.isfinite(difference):
                return float("inf")
            worst = max(worst, difference)
    return worst


def share_of_mismatches(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """For whole numbers: how many are not the wanted ones, as a share of all."""
    counts = [float(np.mean(one != other)) if one.shape == other.shape else 1.0 for one, other in zip(found, wanted)]  # noqa: B905
    return max(counts, default=0.0)


@dataclass(frozen=True)
class StudyCase:
    """One kernel; ``answer`` takes the inputs in float64 and is written for clarity, by another formula if it can."""

    name: str
    group: str  # array, or server
    what: str
    sizes: Mapping[str, Size]
    make: Callable[[Size, Generator], Inputs]
    answer: Callable[..., tuple[Array, ...]]
    traffic: Callable[[Size], float]  # bytes that must be read and written at least once
    tolerance: float
    error: Callable[[Sequence[Array], Sequence[Array]], float] = largest_difference
    more_threads: bool = False  # also measured with more threads than there are cores

    def inputs(self, size: str) -> Inputs:
        """The same for everybody who asks for this size."""
        return self.make(self.sizes[size], np.random.default_rng([7, *self.name.encode()]))

    def wanted(self, inputs: Inputs) -> tuple[Array, ...]:
        """The answer in float64."""
        exact = {key: value.astype(np.float64) if _is_float(value) else value for key, value in inputs.items()}
        return self.answer(**exact)

    def shape(self, size: str) -> str:
        """For people: ``N=50, M=70``."""
        return ", ".join(f"{key}={value:,}" for key, value in self.sizes[size].items())


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float32


CASES: dict[str, StudyCase] = {}


def case(
    group: str,
    what: str,
    sizes: Mapping[str, Size],
    make: Callable[[Size, Generator], Inputs],
    traffic: Callable[[Size], float],
    tolerance: float = 1e-10,
    error: Callable[[Sequence[Array], Sequence[Array]], float] = largest_difference,
    more_threads: bool = False,
) -> Callable[[Callable[..., tuple[Array, ...]]], Callable[..., tuple[Array, ...]]]:
    """Registers a kernel under the name of the function that gives its answer."""

    def add(answer: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, ...]]:
        name = answer.__name__
        CASES[name] = StudyCase(name, group, what, sizes, make, answer, traffic, tolerance, error, more_threads)
        return answer

    return add
