"""Runs: recipes, clocks, executors, checkpoints, records.

The package can be called: ``motley.run("digits", rounds=5)`` is `motley.run.runner.run`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A package that is also the function people look for under its name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from motley.run.runner import run

        return run(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
