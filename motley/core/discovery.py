"""Modules that register something are found by their room: a new file in it needs no mention anywhere else."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache


@cache
def import_room(package: str) -> None:
    """Imports every module of a package, so that what they register is known; kernels are left alone."""
    room = importlib.import_module(package)
    for module in pkgutil.iter_modules(room.__path__):
        if not module.name.endswith("_kernels"):  # these need a compiler
            importlib.import_module(f"{package}.{module.name}")
