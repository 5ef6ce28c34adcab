"""Checkpoints: everything a run needs to go on to exactly the result it would have had.

A checkpoint is one file with the state as a tree (see `motley.core.codec`) and one JSON file that names it with its
sha256. The JSON is replaced last, in one step, so at any moment there is one whole checkpoint on disk.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from motley.core import codec
from motley.core.errors import StateError
from motley.core.files import sha256_of, write_json
from motley.core.types import Tree

VERSION = 2
_KEYS = ("round", "state", "sha256", "wall")


def save(folder: Path, number: int, state: Tree, facts: dict[str, Any]) -> None:
    """Writes the state of a run after a round, and facts about it for people and for `read`."""
    name = f"state-{number:06d}.safetensors"
    digest = codec.write(folder / name, state)
    content = {"version": VERSION, "round": number, "state": name, "sha256": digest, **facts}
    write_json(folder / "checkpoint.json", content)
    for path in folder.glob("state-*.safetensors"):
        if path.name != name:
            path.unlink()


def read(folder: Path) -> dict[str, Any]:
    """The JSON half of a checkpoint, checked."""
    path = folder / "checkpoint.json"
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise StateError(f"There is no checkpoint in {folder}; start the run anew with 'motley run'.") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise StateError(f"The checkpoint {path} is damaged: it is not valid JSON; start the run anew.") from None
    except OSError as error:
        raise StateError(f"The checkpoint {path} cannot be read: {error.strerror}.") from None
    if not isinstance(content, dict):
        raise StateError(f"The checkpoint {path} is damaged: it is not a table; start the run anew.")
    if content.get("version") != VERSION:
        raise StateError(
            f"The checkpoint in {folder} is of format {content.get('version')}, this Motley reads {VERSION}; "
            "finish the run with the version that made it, or start it anew (its records can still be reported)."
        )
    missing = [key for key in _KEYS if key not in content]
    if missing:
        raise StateError(f"The checkpoint {path} is damaged: '{missing[0]}' is missing; start the run anew.")
    return content


def load(folder: Path, content: dict[str, Any], device: torch.device | str) -> Tree:
    """The state that the JSON half names, checked to be whole."""
    path = folder / content["state"]
    if not path.exists() or sha256_of(path) != content["sha256"]:
        state = "changed or cut off" if path.exists() else "missing"
        raise StateError(
            f"The checkpoint is damaged: {path} is {state}; restore it from a copy, or start the run anew."
        )
    return codec.read(path, device)


def flat_sha256(params: Tensor) -> str:
    """sha256 of the flat float32 parameters."""
    return hashlib.sha256(params.detach().cpu().to(torch.float32).contiguous().numpy().tobytes()).hexdigest()
