"""`motley.train`: any module, any data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import motley
from motley.core.errors import DataError, InputError
from motley.methods import make_method
from motley.parts import mix_with_previous, proximal

SETTINGS = {"rounds": 3, "cohort": 3, "clients": 6, "lr": 0.1}


def arrays(n: int = 240) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, n)
    return rng.normal(size=(n, 5)).astype(np.float32) + 2 * y[:, None].astype(np.float32), y


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def test_arrays_and_a_composition() -> None:
    model = module()
    before = [p.clone() for p in model.parameters()]
    result = motley.train(
        model, arrays(), method=motley.compose(proximal(mu=0.1), mix_with_previous()), scale="pooled", **SETTINGS
    )
    assert result.accuracy > 0.6
    assert result.recipe.method == "proximal+mix_with_previous"
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)), "the module is left alone"
    flat = torch.cat([p.detach().reshape(-1) for p in result.model.parameters()])
    assert torch.equal(flat, result.params)


def test_a_torch_data_set_gives_the_same_as_its_arrays() -> None:
    x, y = arrays()
    one = motley.train(module(), (x, y), test=(x[:40], y[:40]), **SETTINGS)
    tensors = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    held_out = TensorDataset(torch.from_numpy(x[:40]), torch.from_numpy(y[:40]))
    two = motley.train(module(), tensors, test=held_out, **SETTINGS)
    assert torch.equal(one.params, two.params)


@pytest.mark.parametrize("method", ["proximal+ama", [proximal(), motley.methods.ama()], make_method("proximal+ama")])
def test_ways_to_name_a_method(method: object) -> None:
    result = motley.train(module(), arrays(), method=method, **SETTINGS)
    expected = motley.train(module(), arrays(), method=make_method("proximal+ama"), **SETTINGS)
    assert torch.equal(result.params, expected.params)


def test_data_given_client_by_client() -> None:
    x, y = arrays()
    homes = [(x[:20], y[:20]), (x[20:100], y[20:100]), (x[100:], y[100:])]
    result = motley.train(module(), homes, test=(x, y), rounds=2, cohort=3)
    assert result.records[0].participants == 3
    with pytest.raises(DataError, match="need a test set"):
        motley.train(module(), homes, rounds=2)


def test_names_for_model_and_data() -> None:
    assert motley.train("logistic", "digits", rounds=1, clients=5, cohort=2).summary["rounds"] == 1


def test_a_saved_run_goes_on(tmp_path: Path) -> None:
    whole = motley.train(module(), arrays(), method="scaffold", **SETTINGS)

    def stop(record: object) -> None:
        raise KeyboardInterrupt

    settings = {**SETTINGS, "method": "scaffold", "checkpoint_seconds": 0.0, "folder": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        motley.train(module(), arrays(), listeners=[stop], **settings)
    with pytest.raises(InputError, match="holds a run already"):
        motley.train(module(), arrays(), **settings)
    result = motley.train(module(), arrays(), resume=True, **settings)
    assert torch.equal(result.params, whole.params)
    assert [record.round for record in result.records] == [1, 2, 3]


def test_what_cannot_be_used_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'rounds'"):
        motley.train(module(), arrays(), rouds=3)
    with pytest.raises(DataError, match="Data of type dict cannot be used"):
        motley.train(module(), {"x": 1}, **SETTINGS)
