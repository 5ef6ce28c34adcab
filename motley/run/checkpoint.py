"""Checkpoints: everything a run needs to go on to exactly the result it would have had.

A checkpoint is one safetensors file and one JSON file that names it with its sha256. The JSON is replaced last, in one
step, so at any moment there is one whole checkpoint on disk.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from motley.core.errors import StateError
from motley.core.trees import from_named, to_named
from motley.fleet.fleet import Fate
from motley.protocol.federation import Weights
from motley.run.charges import Ticket
from motley.run.federation import SimulatedFederation
from motley.run.files import own_copy, sha256_of, write_json, write_tensors
from motley.run.flights import Aloft

VERSION = 1
_KEYS = ("round", "now", "state", "sha256", "clients", "flights", "upload_bytes", "wall")


def save(fed: SimulatedFederation, folder: Path, extra: dict[str, Any]) -> None:
    """Writes a checkpoint of a federation between two rounds."""
    tensors: dict[str, Tensor] = {"weights": fed.weights.value}
    tensors.update(to_named(fed.server.state, "server"))
    tensors.update({"chosen": torch.from_numpy(fed.chosen), "heard": torch.from_numpy(fed.heard)})
    tensors.update(to_named(fed.memory, "memory"))
    tensors.update(to_named(fed.measures, "measures"))
    if fed.shown is not None:
        tensors["shown"] = fed.shown.value
    flights, shared = _flights(fed)
    tensors.update(shared)
    name = f"state-{fed.round:06d}.safetensors"
    digest = write_tensors(folder / name, tensors)
    content = {
        "version": VERSION,
        "round": fed.round,
        "now": fed.now,
        "state": name,
        "sha256": digest,
        "clients": fed.store.checkpoint(),
        "flights": flights,
        "upload_bytes": [fed.charges.extra_bytes, fed.charges.payload_bytes],
        **extra,
    }
    write_json(folder / "checkpoint.json", content)
    for path in folder.glob("state-*.safetensors"):
        if path.name != name:
            path.unlink()
    fed.store.drop_unused()


def _flights(fed: SimulatedFederation) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Tasks in the air: their numbers as JSON, and the models and trees they share as tensors, each once."""
    rows: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    seen = {id(fed.weights.value): "weights"}

    def share(kind: str, thing: Any, tree: Any) -> str:
        if id(thing) not in seen:
            seen[id(thing)] = f"{kind}{len(seen)}"
            tensors.update(to_named(tree, seen[id(thing)]))
        return seen[id(thing)]

    for one in fed.aloft():
        ticket = one.ticket
        affordable, lost, delay, delay_rounds = ticket.fate
        rows.append(
            {
                "client": ticket.client,
                "round": ticket.round,
                "start": share("model", ticket.start.value, ticket.start.value),
                "down": share("down", ticket.down, ticket.down),
                "dials": share("dials", ticket.dials, ticket.dials),
                "numbers": [ticket.assigned, ticket.floor, ticket.worked, ticket.done, ticket.lr, ticket.dispatched],
                "fate": [float(affordable), bool(lost), float(delay), int(delay_rounds)],
                "place": list(one[1:]),
            }
        )
    return rows, tensors


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
            "use the version that made it, or start the run anew."
        )
    missing = [key for key in _KEYS if key not in content]
    if missing:
        raise StateError(f"The checkpoint {path} is damaged: '{missing[0]}' is missing; start the run anew.")
    return content


def restore(fed: SimulatedFederation, folder: Path, content: dict[str, Any]) -> None:
    """Takes a federation back to a checkpoint."""
    path = folder / content["state"]
    if not path.exists() or sha256_of(path) != content["sha256"]:
        state = "changed or cut off" if path.exists() else "missing"
        raise StateError(
            f"The checkpoint is damaged: {path} is {state}; restore it from a copy, or start the run anew."
        )
    device = fed.weights.value.device
    try:
        named = {key: own_copy(value, device) for key, value in safetensors.torch.load_file(path).items()}
    except SafetensorError as error:
        raise StateError(f"The checkpoint {path} cannot be read: {error}.") from None
    fed.weights = Weights(named["weights"])
    fed.server.load(_below(named, "server"))
    fed.memory = _below(named, "memory")
    fed.measures = _below(named, "measures")
    fed.shown = Weights(named["shown"]) if "shown" in named else None
    fed.store.restore(content["clients"])
    fed.chosen, fed.heard = named["chosen"].cpu().numpy(), named["heard"].cpu().numpy()
    trees: dict[str, Any] = {}

    def tree(name: str) -> Any:
        if name not in trees:
            trees[name] = named[name] if name in named else _below(named, name)
        return trees[name]

    aloft = []
    for row in content["flights"]:
        assigned, floor, worked, done, lr, dispatched = row["numbers"]
        affordable, lost, delay, delay_rounds = row["fate"]
        start = trees.setdefault(f"weights of {row['start']}", Weights(tree(row["start"])))
        dials = {part: {key: value.cpu() for key, value in dial.items()} for part, dial in tree(row["dials"]).items()}
        ticket = Ticket(
            row["client"], row["round"], start, tree(row["down"]), dials,
            assigned, floor, worked, done, lr, dispatched, Fate(affordable, lost, delay, delay_rounds),
        )  # fmt: skip
        aloft.append(Aloft(ticket, *row["place"]))
    fed.resume(content["round"], content["now"], aloft, content["upload_bytes"])


def _below(named: dict[str, Tensor], prefix: str) -> Any:
    inside = {key[len(prefix) + 1 :]: value for key, value in named.items() if key.startswith(prefix + "/")}
    return from_named(inside) if inside else {}


def flat_sha256(params: Tensor) -> str:
    """sha256 of the flat float32 parameters."""
    import hashlib

    return hashlib.sha256(params.detach().cpu().to(torch.float32).contiguous().numpy().tobytes()).hexdigest()
