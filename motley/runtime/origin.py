"""What a run was begun with: the values of its recipe, and what was given in Python. What goes on must have the same.

The recipe's file may be edited and given things can be given anew, so both are written down when a run begins.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from motley.core.errors import StateError
from motley.core.files import write_json
from motley.core.network import Network
from motley.data.federated import FederatedData
from motley.fleet import Fleet
from motley.runtime.experiment import Given
from motley.runtime.recipe import WITHOUT_EFFECT, Recipe

FILE = "origin.json"
ROWS = 1 << 16  # samples whose numbers enter the digest of a data set, at most: the same ones every time
WORDS = {"net": "model"}  # as `motley.train` calls them


def write_origin(folder: Path, recipe: Recipe, given: Given | None) -> None:
    """Notes with what a run begins."""
    write_json(folder / FILE, {"recipe": _values(recipe), "given": _described(given or Given())})


def renew_origin(folder: Path, recipe: Recipe) -> None:
    """Notes that a run is to end later."""
    if (path := folder / FILE).is_file():
        write_json(path, {**json.loads(path.read_text()), "recipe": _values(recipe)})


def check_origin(folder: Path, recipe: Recipe, given: Given | None) -> None:
    """Refuses to go on with another recipe, or with other things, than a run was begun with."""
    path = folder / FILE
    if not path.is_file():  # begun before this was noted
        return
    try:
        content = json.loads(path.read_text())
        begun, had = content["recipe"], content["given"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        raise StateError(f"{path} is damaged; restore it from a copy, or start the run anew.") from None
    _check_recipe(folder, begun, recipe)
    _check_given(folder, had, _described(given or Given()))


def _check_recipe(folder: Path, begun: Mapping[str, Any], recipe: Recipe) -> None:
    now, plain = _values(recipe), _values(Recipe())
    changed = [key for key in now if now[key] != begun.get(key, plain[key])]
    if changed:
        told = ", ".join(f"{key} was {_shown(begun.get(key, plain[key]))}, is {_shown(now[key])}" for key in changed)
        before = Recipe(**{key: value for key, value in begun.items() if key in Recipe.model_fields}).identity
        raise StateError(
            f"{folder / 'recipe.toml'} is not the recipe the run was begun with ({before}, now {recipe.identity}): "
            f"{told}. Put it back and resume, or start another run with 'motley run {folder / 'recipe.toml'}'."
        )


def _check_given(folder: Path, had: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    missing = [WORDS.get(name, name) for name in had if name not in now]
    if missing:
        raise StateError(
            f"The run in {folder} was given its {' and '.join(missing)} in Python; give the same again: "
            f"motley.resume({str(folder)!r}, {', '.join(f'{name}=...' for name in missing)})."
        )
    for name in now:
        if name not in had:
            raise StateError(
                f"The run in {folder} was begun without a {WORDS.get(name, name)} given in Python; leave it out."
            )
        for what, value in now[name].items():
            if value != had[name].get(what):
                known = _shown(had[name].get(what))
                raise StateError(
                    f"The {WORDS.get(name, name)} given to resume the run in {folder} is not that with which it was "
                    f"begun: {what} was {known}, is {_shown(value)}."
                )


def _shown(value: Any) -> str:
    return "none" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


def _values(recipe: Recipe) -> dict[str, Any]:
    """What decides a result, as JSON gives it back."""
    found: dict[str, Any] = json.loads(json.dumps(recipe.model_dump(exclude=set(WITHOUT_EFFECT))))
    return found


# ------------------------------------------------------------------ what was given
def _described(given: Given) -> dict[str, dict[str, Any]]:
    """What can be told of given things without keeping them: names, sizes, a digest of their numbers."""
    found: dict[str, dict[str, Any]] = {}
    if given.data is not None:
        found["data"] = _data(given.data)
    if given.net is not None:
        found["net"] = _network(given.net)
    if given.method is not None:
        method = given.method
        parts = [_text(part) for part in method.parts]
        found["method"] = {"parts": parts, "protocol": method.protocol, "options": _text(method.options)}
    if given.fleet is not None:
        found["fleet"] = _fleet(given.fleet)
    if given.problem is not None:
        found["problem"] = {"name": given.problem.name}
    return found


def _data(data: FederatedData) -> dict[str, Any]:
    dataset, partition = data.dataset, data.partition
    sizes = data.sizes
    return {
        "name": dataset.name,
        "samples": len(dataset.x),
        "shape": list(dataset.input_shape),
        "classes": dataset.n_classes,
        "test samples": len(dataset.test_x),
        "clients": data.n_clients,
        "samples of a client": [int(sizes.min()), int(sizes.max())],
        "digest": _digest([dataset.x, dataset.y, dataset.test_x, dataset.test_y]),
        "digest of who holds what": _digest([partition.index, partition.offsets]),
    }


def _network(net: Network) -> dict[str, Any]:
    """Its layers and what is not trained; the weights are in the checkpoint."""
    layout = net.layout
    trained = {slot.name for slot in layout.slots}
    others = [tensor for name, tensor in net.module.state_dict().items() if name not in trained]
    return {
        "type": type(net.module).__name__,
        "parameters": net.size,
        "layers": [f"{slot.name} {list(slot.shape)}" for slot in layout.slots],
        "text": _text(net.module),
        "digest of what is not trained": _digest(others),
    }


def _fleet(fleet: Fleet) -> dict[str, Any]:
    columns = [fleet.flops, fleet.down, fleet.up, fleet.limited]
    return {"clients": fleet.n_clients, "layers": list(fleet.layers), "digest": _digest(columns)}


def _text(thing: Any) -> str:
    """A thing in words, without the places in memory that some tell."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))


def _digest(arrays: Iterable[Any]) -> str:
    """sha256 of arrays' bytes; of long ones, of rows at equal distances."""
    found = hashlib.sha256()
    for array in arrays:
        values = array.detach().cpu() if isinstance(array, Tensor) else torch.from_numpy(np.asarray(array))
        if values.dim() and len(values) > ROWS:
            values = values[torch.linspace(0, len(values) - 1, ROWS, dtype=torch.float64).long()]
        found.update(f"{tuple(values.shape)} {values.dtype}".encode())
        found.update(values.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]
