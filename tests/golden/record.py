"""Writes the models that golden runs give now: ``python -m tests.golden.record NAME...``, or ``--all`` of them.

A recorded model is what later changes are held to, so it is written anew only where a change of it is meant.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import safetensors.torch
import torch

import motley
from tests.golden.runs import RUNS, recipe

PLACE = Path(__file__).parent


def here() -> dict[str, str]:
    """What decides the bits of a model on a CPU."""
    return {"torch": torch.__version__.split("+")[0], "capability": torch.backends.cpu.get_cpu_capability()}


def costs(result: motley.Result) -> list[float]:
    """What the run cost on the virtual clock."""
    return [result.summary[key] for key in ("virtual_time", "bytes_up", "bytes_down", "lost", "late")]


def record(names: list[str]) -> None:
    path = PLACE / "hashes.json"
    models_path = PLACE / "models.safetensors"
    content = json.loads(path.read_text()) if path.is_file() else {"machine": here(), "models": {}, "costs": {}}
    models = safetensors.torch.load_file(models_path) if models_path.is_file() else {}
    for name in RUNS if names == ["--all"] else names:
        result = motley.run(recipe(name))
        content["models"][name] = result.summary["model_sha256"]
        content["costs"][name] = costs(result)
        models[name] = result.params.clone()
        print(name, result.summary["model_sha256"][:12], f"{result.accuracy:.3f}", flush=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    safetensors.torch.save_file(models, models_path)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(f"Name the runs to be recorded anew, or --all: {', '.join(RUNS)}.")
    record(sys.argv[1:])
