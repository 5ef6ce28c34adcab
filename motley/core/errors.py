"""Every error Motley raises on purpose.

MotleyError            anything below; its text is one sentence that says what was given, what is allowed, what to do
├── InputError         wrong input by the user: exit code 2
│   ├── UnknownNameError    a part, method, data set, ... that does not exist; suggests the nearest name
│   ├── RecipeError    a recipe key or value that is not allowed
│   ├── ConflictError  parts that cannot be combined
│   ├── HookError      a part's hook that cannot be called, or whose result cannot be used
│   ├── TogetherError  a model that cannot be trained for many clients as one computation
│   ├── PartitionError a partition that cannot be made
│   ├── DataError      data that is missing, corrupt or of the wrong shape
│   └── StateError     a run directory or checkpoint that cannot be used
├── TrainingError      something went wrong while training (for example an update that is not finite)
└── MemoryFullError    a GPU's memory is too small for a run, or others have taken it
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MotleyError(Exception):
    """Base class: the text is one sentence for a person."""


class InputError(MotleyError):
    """Wrong input by the user."""


class RecipeError(InputError):
    """A recipe key or value that is not allowed."""


class ConflictError(InputError):
    """Parts that cannot be combined."""


class HookError(InputError):
    """A part's hook that cannot be called, or whose result cannot be used."""


class TogetherError(InputError):
    """A model that cannot be trained for many clients as one computation."""


class PartitionError(InputError):
    """A partition that cannot be made from the data at hand."""


class DataError(InputError):
    """Data that is missing, corrupt or of the wrong shape."""


class StateError(InputError):
    """A run directory or checkpoint that cannot be used."""


class TrainingError(MotleyError):
    """Something went wrong while training."""


class MemoryFullError(MotleyError):
    """A GPU's memory is too small for a run, or others have taken it."""


class UnknownNameError(InputError):
    """A name that is not registered; the message suggests the nearest one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(set(known))
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
        hint = f"did you mean '{close[0]}'?" if close else f"known are: {', '.join(names) or 'none'}."
        super().__init__(f"There is no {kind} named '{name}'; {hint}")
        self.suggestion = close[0] if close else None
        self._given = (kind, name, names)

    def __reduce__(self) -> tuple[type[UnknownNameError], tuple[str, str, list[str]]]:
        return type(self), self._given
