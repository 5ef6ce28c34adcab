"""``motley list``: what there is, from the registries."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motley.commands.output import AsJson
from motley.core.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from motley.core.registry import Entry, Registry

Row = dict[str, Any]


def _plain(value: Any) -> Any:
    """A default as JSON can say it."""
    import inspect

    if value is inspect.Parameter.empty:
        return None
    try:
        json.dumps(value)
    except TypeError:
        return repr(value)
    return value


def _row(entry: Entry) -> Row:
    parameters = {name: _plain(value) for name, value in entry.parameters.items()}
    return {"name": entry.name, "summary": entry.summary, "parameters": parameters}


def _registry(registry: Registry[Any]) -> list[Row]:
    return [_row(entry) for entry in registry]


def parts() -> list[Row]:
    import motley.methods  # noqa: F401  (registers the parts)
    from motley.core.part import PARTS

    rows = []
    for entry in PARTS:
        rows.append({**_row(entry), "seam": entry.meta["seam"], "hooks": _hooks(entry)})
    return sorted(rows, key=lambda row: (row["seam"], row["name"]))


def _hooks(entry: Entry) -> list[str] | None:
    """The hooks that a part fills; None for one of a user's own that cannot be made without arguments."""
    from motley.core.part import PARTS

    try:
        return list(PARTS.make(entry.name, **entry.meta["example"]).filled)
    except InputError:
        return None


def methods() -> list[Row]:
    from motley.methods import METHODS

    rows = []
    for entry in METHODS:
        made = METHODS.make(entry.name)
        rows.append({**_row(entry), "parts": [part.name for part in made.parts], "protocol": made.protocol})
    return rows


def datasets() -> list[Row]:
    from motley.data.datasets import DATASETS

    return _registry(DATASETS)


def partitions() -> list[Row]:
    from motley.data.partitioning import PARTITIONS

    return _registry(PARTITIONS)


def augmentations() -> list[Row]:
    from motley.client.augment import AUGMENTATIONS

    return _registry(AUGMENTATIONS)


def models() -> list[Row]:
    from motley.nets import MODELS

    return _registry(MODELS)


def problems() -> list[Row]:
    import motley.methods  # noqa: F401  (it brings in the room where problems are written)
    from motley.client.problems import PROBLEMS

    return _registry(PROBLEMS)


def public() -> list[Row]:
    from motley.data.public import PUBLIC

    return _registry(PUBLIC)


def skews() -> list[Row]:
    from motley.data.skew import SKEWS

    return _registry(SKEWS)


def diagnostics() -> list[Row]:
    import motley.runtime.launch  # noqa: F401  (registers them all)
    from motley.runtime.diagnostics import DIAGNOSTICS

    return _registry(DIAGNOSTICS)


def fleets() -> list[Row]:
    from motley.fleet.layers import FLEETS

    return _registry(FLEETS)


def protocols() -> list[Row]:
    from motley.protocol import PROTOCOLS

    return _registry(PROTOCOLS)


def optimizers() -> list[Row]:
    from motley.client.optimizer import OPTIMIZERS

    return _registry(OPTIMIZERS)


def schedules() -> list[Row]:
    from motley.core.learning_rates import SCHEDULES

    return _registry(SCHEDULES)


def executors() -> list[Row]:
    from motley.engine import EXECUTORS

    auto = {"name": "auto", "summary": "The one that fits the machine and the recipe.", "parameters": {}}
    return [auto, *_registry(EXECUTORS)]


def trackers() -> list[Row]:
    from motley.runtime.trackers import TRACKERS

    return _registry(TRACKERS)


def phases() -> list[Row]:
    from motley.runtime.phases import PHASES

    return _registry(PHASES)


def recipes() -> list[Row]:
    from motley.runtime.recipe import load, names

    rows = []
    for name in names():
        recipe = load(name)
        rows.append({"name": name, "summary": recipe.summary, "data": recipe.data, "method": recipe.method})
    return rows


KINDS: dict[str, Callable[[], list[Row]]] = {
    kind.__name__: kind
    for kind in (
        parts,
        methods,
        datasets,
        partitions,
        skews,
        augmentations,
        public,
        models,
        problems,
        fleets,
        protocols,
        optimizers,
        schedules,
        executors,
        diagnostics,
        trackers,
        phases,
        recipes,
    )
}


def show(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")],
    as_json: AsJson = False,
) -> None:
    """List what there is: parts, methods, datasets, partitions, augmentations, models, fleets, protocols ..."""
    if kind not in KINDS:
        raise UnknownNameError("list", kind, KINDS)
    rows = KINDS[kind]()
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    from motley.report.summary_tables import print_listing

    print_listing(kind, rows)
