"""What a run was begun with: the values of its recipe, and what was given in Python. What goes on must have the same.

The recipe's file may be edited and given things can be given anew, so both are written down when a run begins.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from motley.core.code_digest import code_digest, comparable, text_of
from motley.core.errors import StateError
from motley.core.files import write_json
from motley.core.network import Network
from motley.core.part import Method
from motley.data.federated import FederatedData
from motley.fleet import Fleet
from motley.runtime.experiment import Given
from motley.runtime.recipe import WITHOUT_EFFECT, Recipe

FILE = "origin.json"
ROWS = 1 << 16  # samples whose numbers enter the digest of a data set, at most: the same ones every time
CODE, RATES = "code of its own", "rate by round"
WORDS = {"net": "model"}  # as `motley.train` calls them


def write_origin(folder: Path, recipe: Recipe, given: Given | None) -> None:
    """Notes with what a run begins."""
    write_json(folder / FILE, {"recipe": _values(recipe), "given": _described(given or Given(), recipe)})


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
    _check_given(folder, had, _described(given or Given(), recipe))


def _check_recipe(folder: Path, begun: Mapping[str, Any], recipe: Recipe) -> None:
    now, plain = _values(recipe), _values(Recipe())
    changed = [key for key in now if now[key] != begun.get(key, plain[key])]
    if changed:
        told = ", ".join(f"{key} was {_shown(begun.get(key, plain[key]))}, is {_shown(now[key])}" for key in changed)
        before = Recipe(**{key: value for key, value in begun.items() if key in Recipe.model_fields}).identity
        if _is_as_begun(folder / "recipe.toml", begun, changed):
            raise StateError(
                f"The run in {folder} was begun with other settings: {told}. Give the same to go on with it; only when "
                f"it ends can be changed, motley.resume({str(folder)!r}, rounds=..., ...)."
            )
        raise StateError(
            f"{folder / 'recipe.toml'} is not the recipe the run was begun with ({before}, now {recipe.identity}): "
            f"{told}. Put it back and resume, or start another run with 'motley run {folder / 'recipe.toml'}'."
        )


def _is_as_begun(path: Path, begun: Mapping[str, Any], keys: Iterable[str]) -> bool:
    """Whether the file says of these keys what it said at first, so that it was not edited."""
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, ValueError):
        return False
    plain = _values(Recipe())
    known = {key: None if value == "none" else value for key, value in content.items()}
    return all(known.get(key, plain[key]) == begun.get(key, plain[key]) for key in keys)


def _check_given(folder: Path, had: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    missing = [WORDS.get(name, name) for name in had if name not in now]
    if missing:
        raise StateError(
            f"The run in {folder} was given its {' and '.join(missing)} in Python; give the same again: "
            f"motley.resume({str(folder)!r}, {', '.join(f'{name}=...' for name in missing)})."
        )
    for name, told in now.items():
        if name in had or name != "lr":  # which was not noted before
            _check_one(folder, WORDS.get(name, name), had.get(name), told)


def _check_one(folder: Path, word: str, had: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
    if had is None:
        raise StateError(f"The run in {folder} was begun without a {word} given in Python; leave it out.")
    for what, value in now.items():
        if not _same(what, had.get(what), value):
            raise StateError(
                f"The {word} given to resume the run in {folder} is not that with which it was begun: {what} was "
                f"{_shown(had.get(what))}, is {_shown(value)}."
            )


def _same(what: str, had: Any, has: Any) -> bool:
    """Whether two descriptions are of one thing, as far as can be told."""
    if what == CODE and (had is None or not comparable(str(had), str(has))):
        return True  # noted by another version, which says nothing about this one
    if what == RATES and isinstance(had, list):
        shorter = min(len(had), len(has))  # a run may have been asked to go on for longer
        return bool(had[:shorter] == has[:shorter])
    return bool(had == has)


def _shown(value: Any) -> str:
    return "none" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


def _values(recipe: Recipe) -> dict[str, Any]:
    """What decides a result, as JSON gives it back."""
    found: dict[str, Any] = json.loads(json.dumps(recipe.model_dump(exclude=set(WITHOUT_EFFECT))))
    return found


# ------------------------------------------------------------------ what was given
def _described(given: Given, recipe: Recipe) -> dict[str, dict[str, Any]]:
    """What can be told of given things without keeping them: names, sizes, a digest of their numbers."""
    found: dict[str, dict[str, Any]] = {}
    if given.data is not None:
        found["data"] = _data(given.data)
    if given.net is not None:
        found["net"] = _network(given.net)
    if given.method is not None:
        found["method"] = _method(given.method)
    if given.fleet is not None:
        found["fleet"] = _fleet(given.fleet)
    if given.problem is not None:
        found["problem"] = {"name": given.problem.name, **_own_code(given.problem)}
    if given.lr is not None:
        found["lr"] = {RATES: list(map(given.lr, range(1, recipe.rounds + 1)))}
    return found


def _method(method: Method) -> dict[str, Any]:
    parts = [text_of(part) for part in method.parts]
    own = _own_code(*(getattr(part, hook) for part in method.parts for hook in part.filled))
    return {"parts": parts, "protocol": method.protocol, "options": text_of(method.options), **own}


def _own_code(*things: Any) -> dict[str, Any]:
    digest = code_digest(*things)
    return {CODE: digest} if digest else {}


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
        "text": text_of(net.module),
        "digest of what is not trained": _digest(others),
    }


def _fleet(fleet: Fleet) -> dict[str, Any]:
    columns = [fleet.flops, fleet.down, fleet.up, fleet.limited]
    return {"clients": fleet.n_clients, "layers": list(fleet.layers), "digest": _digest(columns)}


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
