"""The directory of a run: what it holds from the start, and what can be read back from it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from motley.core.errors import StateError
from motley.core.files import write_json, write_text
from motley.core.plugins import home_of
from motley.data.preparation import Preparation
from motley.runtime.experiment import Given
from motley.runtime.origin import write_origin
from motley.runtime.recipe import Recipe, load
from motley.runtime.records import environment

PREPARATION = "preparation.json"


def new_folder(recipe: Recipe, parent: Path) -> Path:
    """A directory of its own for a run: name, method, seed and the recipe's hash."""
    method = recipe.method.split("(")[0].replace(" ", "") if len(recipe.method) > 40 else recipe.method.replace(" ", "")
    safe = "".join(letter if letter.isalnum() or letter in "-_.+=" else "_" for letter in method)
    base = f"{recipe.name.replace('/', '-')}-{safe}-s{recipe.seed}-{recipe.identity}"
    for number in range(1, 10_000):
        folder = parent / (base if number == 1 else f"{base}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise StateError(f"There are too many runs named {base} in {parent}; delete some.")


def begin(recipe: Recipe, folder: Path, given: Given | None = None) -> None:
    """Writes what a run's directory holds from the start: the recipe, what was given, facts about the machine."""
    if (folder / "rounds.jsonl").exists() or has_checkpoint(folder):
        raise StateError(
            f"{folder} holds a run already; continue it with 'motley resume', or choose another directory."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "recipe.toml", recipe.to_toml())
    write_origin(folder, recipe, given)
    homes = {name: home_of(name) for name in recipe.imports}
    write_json(folder / "environment.json", {**environment(), **({"imports": homes} if homes else {})})


def has_checkpoint(folder: Path) -> bool:
    return (folder / "checkpoint" / "checkpoint.json").is_file()


def open_run(folder: str | Path, changes: Iterable[str] = ()) -> Recipe:
    """The recipe of a run's directory."""
    path = Path(folder) / "recipe.toml"
    if not path.is_file():
        raise StateError(f"{folder} is not the directory of a run: there is no recipe.toml in it.")
    return load(str(path), changes, _homes(Path(folder)))


def _homes(folder: Path) -> list[str]:
    """Where the modules lay that a run imported when it began."""
    try:
        content = json.loads((folder / "environment.json").read_text())
    except (OSError, ValueError):
        return []
    return [home for home in content.get("imports", {}).values() if home is not None]


def read_summary(folder: str | Path) -> dict[str, Any] | None:
    """The summary of a finished run, or None."""
    path = Path(folder) / "summary.json"
    if not path.is_file():
        return None
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def read_preparation(folder: str | Path) -> Preparation | None:
    """What is done to raw inputs before the model of a finished run sees them; None where it left no word of it."""
    path = Path(folder) / PREPARATION
    return Preparation.from_dict(json.loads(path.read_text())) if path.is_file() else None
