"""Motley: federated learning where clients are nothing alike.

>>> import motley
>>> result = motley.run("digits", rounds=2)
>>> result.summary["rounds"]
2
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives; they are imported when first used, so that the command answers quickly.
_HOMES = {
    "ConflictError": "motley.core.errors",
    "Dataset": "motley.data.dataset",
    "FederatedData": "motley.data.federated",
    "InputError": "motley.core.errors",
    "Listener": "motley.runtime.listeners",
    "Method": "motley.core.part",
    "MotleyError": "motley.core.errors",
    "Network": "motley.core.network",
    "Part": "motley.core.part",
    "Problem": "motley.core.problem",
    "Recipe": "motley.runtime.recipe",
    "Result": "motley.runtime.launch",
    "TrainingError": "motley.core.errors",
    "compose": "motley.core.part",
    "export": "motley.runtime.exporting",
    "load_model": "motley.runtime.saving",
    "load_recipe": "motley.runtime.recipe",
    "part": "motley.core.part",
    "resume": "motley.runtime.launch",
    "run": "motley.runtime.launch",
    "train": "motley.runtime.train",
}
_PACKAGES = ("methods", "parts")

__all__ = [
    "ConflictError",
    "Dataset",
    "FederatedData",
    "InputError",
    "Listener",
    "Method",
    "MotleyError",
    "Network",
    "Part",
    "Problem",
    "Recipe",
    "Result",
    "TrainingError",
    "__version__",
    "compose",
    "export",
    "load_model",
    "load_recipe",
    "methods",
    "part",
    "parts",
    "resume",
    "run",
    "train",
]

if TYPE_CHECKING:
    from motley import methods, parts
    from motley.core.errors import ConflictError, InputError, MotleyError, TrainingError
    from motley.core.network import Network
    from motley.core.part import Method, Part, compose, part
    from motley.core.problem import Problem
    from motley.data.dataset import Dataset
    from motley.data.federated import FederatedData
    from motley.runtime.exporting import export
    from motley.runtime.launch import Result, resume, run
    from motley.runtime.listeners import Listener
    from motley.runtime.recipe import Recipe
    from motley.runtime.recipe import load as load_recipe
    from motley.runtime.saving import load_model
    from motley.runtime.train import train


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"motley.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'motley' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), "load" if name == "load_recipe" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
