"""When a run ends before its last round: ``stop="accuracy>=0.9 for 3"``, ``"loss<=0.4"``, ``"accuracy stalls for 10"``.

Whether it is time is read from the records alone, so a resumed run stops where the uninterrupted one does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from motley.core.errors import RecipeError, UnknownNameError
from motley.core.problem import Problem
from motley.runtime.records import Record

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
TARGET = re.compile(rf"(\w+)\s*(>=|<=)\s*({NUMBER})(?:\s+for\s+(\d+))?")
STALL = re.compile(rf"(\w+)\s+stalls\s+for\s+(\d+)(?:\s+by\s+({NUMBER}))?")


class Rule(Protocol):
    """One reason to stop."""

    @property
    def score(self) -> str:
        """What it looks at."""

    def met(self, values: Sequence[float]) -> bool:
        """Whether it is time, from all values that were recorded so far."""


@dataclass(frozen=True)
class Target:
    """A score has reached a bound, so many evaluations in a row."""

    score: str
    better: int  # +1: at least the bound, -1: at most
    bound: float
    times: int = 1

    def met(self, values: Sequence[float]) -> bool:
        last = values[-self.times :]
        return len(last) == self.times and all(self.better * (value - self.bound) >= 0 for value in last)


@dataclass(frozen=True)
class Stall:
    """The best of the last ``patience`` evaluations is no better, by more than ``least``, than the best before them."""

    score: str
    better: int
    patience: int
    least: float = 0.0

    def met(self, values: Sequence[float]) -> bool:
        signed = [self.better * value for value in values]
        before, last = signed[: -self.patience], signed[-self.patience :]
        return bool(before) and max(last) <= max(before) + self.least


def parse_stop(text: str, problem: Problem) -> list[Rule]:
    """The reasons to stop, each enough by itself: several are joined by ``or``."""
    return [_rule(piece.strip(), text, problem) for piece in re.split(r"\s+or\s+", text.strip())]


def _rule(piece: str, text: str, problem: Problem) -> Rule:
    target, stall = TARGET.fullmatch(piece), STALL.fullmatch(piece)
    if target is not None:
        name, sign, bound, times = target.groups()
        rule: Rule = Target(name, 1 if sign == ">=" else -1, float(bound), int(times or 1))
        enough = int(times or 1)
    elif stall is not None:
        name, patience, least = stall.groups()
        rule = Stall(name, _better(name, problem), int(patience), float(least or 0.0))
        enough = int(patience)
    else:
        enough = 0
    if enough < 1:
        raise RecipeError(
            f"Cannot read stop='{text}': write 'accuracy>=0.9', 'loss<=0.4 for 3' (evaluations in a row), "
            "'accuracy stalls for 10' or 'loss stalls for 10 by 0.01'; join several with 'or'."
        )
    return rule


def _better(name: str, problem: Problem) -> int:
    plain = name.removeprefix("validation_").removeprefix("own_").removesuffix("_worst_decile")
    return -1 if name == "train_loss" else problem.better(plain)


def check_stop(text: str, problem: Problem, validates: bool, measures: bool) -> None:
    """Refuses what cannot be read, and scores that nothing will record.

    validates: there are validation samples; measures: diagnostics may record numbers of any name.
    """
    known = {*problem.goals, "train_loss"}
    known |= {f"own_{name}" for name in problem.goals} | {f"own_{problem.headline}_worst_decile"}
    if validates:
        known |= {f"validation_{name}" for name in problem.goals}
    for rule in parse_stop(text, problem):
        _refuse_beyond(rule, text, problem)
        if rule.score not in known and problem.names_its_scores and not measures:
            raise UnknownNameError("recorded score", rule.score, known)


def _refuse_beyond(rule: Rule, text: str, problem: Problem) -> None:
    """A fraction never comes above 1: who writes 90 means percent."""
    plain = rule.score.removeprefix("validation_").removeprefix("own_")
    if isinstance(rule, Target) and rule.better > 0 and rule.bound > 1 and plain in problem.fractions:
        raise RecipeError(
            f"stop='{text}' can never hold, since {rule.score} lies between 0 and 1; write {rule.score}>="
            f"{rule.bound / 100:g} for {rule.bound:g} %."
        )


def recorded(records: Sequence[Record], name: str) -> list[float]:
    """All values of a score so far, in the order of rounds."""
    found = [record.train_loss if name == "train_loss" else record.score(name) for record in records]
    return [value for value in found if value is not None and math.isfinite(value)]


def reason_to_stop(rules: Sequence[Rule], records: Sequence[Record]) -> Rule | None:
    """The first rule that is met."""
    return next((rule for rule in rules if rule.met(recorded(records, rule.score))), None)
