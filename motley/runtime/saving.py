"""Trained models as files that anybody reads, and back.

A file is safetensors: tensors by their names in the module. Its metadata tell what else is needed: how the module is
made again, where that is known, and what is done to raw inputs before it sees them.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from motley.core.errors import InputError, StateError
from motley.core.files import write_bytes
from motley.core.keys import Key
from motley.core.network import Network
from motley.data.preparation import Preparation
from motley.nets.zoo import make
from motley.runtime.folders import open_run, read_preparation

FACTS = "motley"
SUFFIX = ".safetensors"


def write_model(path: Path, net: Network, module: nn.Module, preparation: Preparation | None) -> None:
    """Writes a trained module, frozen weights and buffers included."""
    named = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in module.state_dict().items()}
    facts = {
        "made_from": net.made_from,
        "class": type(module).__name__,
        "preparation": None if preparation is None else preparation.as_dict(),
    }
    write_bytes(path, safetensors.torch.save(named, {FACTS: json.dumps(facts)}))


def save_as(path: str | Path, net: Network, module: nn.Module, preparation: Preparation | None) -> Path:
    """`write_model` where a user wants it."""
    place = Path(path)
    if place.suffix != SUFFIX:
        raise InputError(
            f"Models are saved as safetensors, so '{place.name}' must end in {SUFFIX}; other forms: motley.export."
        )
    try:
        write_model(place, net, module, preparation)
    except OSError as error:
        raise StateError(f"The model cannot be written to {place}: {error.strerror or error}.") from None
    return place


def load_model(source: str | Path, into: nn.Module | None = None, *, raw: bool = True) -> nn.Module:
    """The trained module of a run's directory or of a saved file, in plain torch.

    into: a module of the same shape, of which a copy is filled; needed where the model was given in Python.
    raw: the module takes raw inputs, their preparation is part of it; otherwise it takes them as they were trained on.
    """
    place = Path(source)
    path = place / "model.safetensors" if place.is_dir() else place
    named, facts = _read(path)
    module = _made(facts, path, place) if into is None else copy.deepcopy(into)
    _fill(module, named, path)
    preparation = _preparation(facts, place)
    return (module if preparation is None or not raw else preparation.module(module)).eval()


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.is_file():
        raise StateError(f"There is no model at {path}; finish its run with 'motley resume', or name a file.")
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {}).get(FACTS, "{}"))
        return safetensors.torch.load_file(path), facts
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise StateError(f"The model {path} cannot be read: {error}.") from None


def _made(facts: dict[str, Any], path: Path, place: Path) -> nn.Module:
    if place.is_dir():
        open_run(place)  # imports what the run imported
    told = facts.get("made_from")
    if told is None:
        kind = facts.get("class", "Model")
        raise StateError(
            f"The model {path} ({kind}) was given in Python, so give a module to load it into: "
            f"motley.load_model(..., into={kind}(...))."
        )
    return make(told["model"], tuple(told["shape"]), told["classes"], told["vocabulary"], Key.root(0))


def _fill(module: nn.Module, named: dict[str, Tensor], path: Path) -> None:
    for name, own in module.state_dict().items():
        found = named.get(name)
        if found is None or found.shape != own.shape:
            got = "is missing" if found is None else f"has the shape {tuple(found.shape)}, not {tuple(own.shape)}"
            raise StateError(f"The model {path} does not fit the module {type(module).__name__}: '{name}' {got}.")
    more = sorted(set(named) - set(module.state_dict()))
    if more:
        raise StateError(f"The model {path} does not fit the module {type(module).__name__}: it has '{more[0]}' too.")
    module.load_state_dict(named)


def _preparation(facts: dict[str, Any], place: Path) -> Preparation | None:
    told = facts.get("preparation")
    if told is not None:
        return Preparation.from_dict(told)
    return read_preparation(place) if place.is_dir() else None


def preparation_of(source: str | Path) -> Preparation | None:
    """What is done to raw inputs before a saved model sees them."""
    place = Path(source)
    return _preparation(_read(place / "model.safetensors" if place.is_dir() else place)[1], place)
