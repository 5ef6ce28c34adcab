"""Packages that bring parts, models, data or protocols of their own: the entry point group ``motley``.

    [project.entry-points.motley]
    my-parts = "my_package.parts"

The modules are imported when a name is asked for that nobody knows yet, or when what there is is listed. A module that
no package brings is imported by its name or its file: ``motley --import my_module``, or ``imports`` in a recipe.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from motley.core.errors import InputError

GROUP = "motley"


@cache
def load_plugins() -> tuple[str, ...]:
    """Imports every plugin that is installed, once; one that fails is told of and leaves the others be."""
    loaded = []
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:  # whatever somebody else's module may raise
            warnings.warn(f"The plugin '{entry.name}' ({entry.value}) cannot be loaded: {error}.", stacklevel=2)
        else:
            loaded.append(entry.name)
    return tuple(loaded)


def import_modules(names: Iterable[str], places: Iterable[Path | str] = ()) -> None:
    """Imports modules of the user's by name, as here or in ``places`` they are found, or by the path of a file."""
    for place in (Path.cwd(), *places):
        if str(Path(place).resolve()) not in sys.path:
            sys.path.append(str(Path(place).resolve()))
    for name in names:
        _import_one(name)


def _import_one(name: str) -> None:
    try:
        if name.endswith(".py"):
            _import_file(Path(name).resolve())
        else:
            importlib.import_module(name)
    except InputError:
        raise
    except Exception as error:  # whatever somebody else's module may raise
        told = f"{type(error).__name__}: {error}".rstrip(".:")
        raise InputError(
            f"The module '{name}' cannot be imported ({told}); call motley from the directory where it lies, install "
            "it, or name its file (--import path/to/module.py)."
        ) from error


def _import_file(path: Path) -> None:
    """Imports a file once, under its own name, so that what it defines can be found by other processes."""
    known = sys.modules.get(path.stem)
    if known is not None and Path(getattr(known, "__file__", None) or "").resolve() == path:
        return
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if known is not None:
        raise ImportError(f"another module is called '{path.stem}' already; rename the file")
    sys.path.insert(0, str(path.parent))
    importlib.import_module(path.stem)


def home_of(name: str) -> str | None:
    """The directory from which a module that was imported can be imported again."""
    module = sys.modules.get(Path(name).stem if name.endswith(".py") else name.partition(".")[0])
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    return str(path.parents[1] if path.name == "__init__.py" else path.parent)
