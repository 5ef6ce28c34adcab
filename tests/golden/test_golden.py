"""The golden runs give the models they gave: bit for bit where torch and the processor are those of the record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

import motley
from tests.golden.record import PLACE, costs, here
from tests.golden.runs import RESUMED, RUNS, recipe

KEPT = json.loads((PLACE / "hashes.json").read_text())
MODELS = safetensors.torch.load_file(PLACE / "models.safetensors")
TOLERANCE = 1e-6


def compare(name: str, result: motley.Result) -> None:
    if here() == KEPT["machine"]:
        assert result.summary["model_sha256"] == KEPT["models"][name]
    else:
        torch.testing.assert_close(result.params.cpu(), MODELS[name], rtol=TOLERANCE, atol=TOLERANCE)
    assert costs(result) == pytest.approx(KEPT["costs"][name], rel=1e-9)


def test_every_run_is_kept() -> None:
    assert len(RUNS) >= 25
    assert set(RUNS) == set(KEPT["models"]) == set(MODELS)


@pytest.mark.parametrize("name", RUNS)
def test_the_same_model(name: str) -> None:
    compare(name, motley.run(recipe(name)))


@pytest.mark.parametrize("name", RESUMED)
def test_the_same_model_after_an_interruption(name: str, tmp_path: Path) -> None:
    def interrupt(record: object) -> None:
        if record.round == 3:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        motley.run({**recipe(name), "checkpoint_seconds": 0.0}, folder=tmp_path / "run", listeners=[interrupt])
    compare(name, motley.resume(tmp_path / "run"))
