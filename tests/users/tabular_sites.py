"""Tables spread over sites: arrays per client, numbers as targets, scaling by each site, scores of each site."""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import motley

rng = np.random.default_rng(0)
SHIFT = np.array([50.0, -3.0, 0.0, 1000.0, 0.5])
STRETCH = np.array([7.0, 0.2, 1.0, 300.0, 0.01])
WEIGHTS = np.array([1.0, -2.0, 0.5, 0.7, 0.0])


def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns as they come from a hospital: in units of their own."""
    z = rng.normal(size=(n, 5))
    return (z * STRETCH + SHIFT).astype(np.float32), (z @ WEIGHTS + 3 + 0.1 * rng.normal(size=n)).astype(np.float32)


sites = [rows(n) for n in (40, 60, 80, 100)]
held = rows(150)
own = [rows(20) for _ in sites]


def model() -> nn.Module:
    return nn.Linear(5, 1)


def trained(**settings: object) -> motley.Result:
    settings = {"problem": "regression", "rounds": 15, "cohort": 4, "lr": 0.05, "test": held, **settings}
    return motley.train(model, sites, **settings)


def r2(outputs: torch.Tensor, y: np.ndarray) -> float:
    target = torch.tensor(y, dtype=torch.float64)
    gap = outputs.detach().double().reshape(-1) - target
    return float(1 - gap.square().sum() / (target - target.mean()).square().sum())


def numbers_are_no_classes() -> None:
    """A target of fractions is refused as classes, never truncated."""
    try:
        motley.train(nn.Linear(5, 3), sites, test=held, rounds=1)
    except motley.InputError as error:
        print(error)
        assert "regression" in str(error)
    else:
        raise AssertionError("fractions were taken for classes")


def taken_elsewhere(folder: Path) -> None:
    """The exported module scores on raw rows, in plain torch, what the run says."""
    result = trained(scale="per_client")
    assert result.scores["r2"] > 0.9 and result.summary["scale"] == "per_client"
    x = torch.tensor(held[0])
    assert abs(r2(result.module()(x), held[1]) - result.scores["r2"]) < 1e-5
    path = motley.export(result, folder / "sites.pt", to="torchscript")
    assert abs(r2(torch.jit.load(path)(x), held[1]) - result.scores["r2"]) < 1e-5
    path = motley.export(result, folder / "sites.pt2", to="torch.export")
    assert abs(r2(torch.export.load(path).module()(x), held[1]) - result.scores["r2"]) < 1e-5
    result.save(folder / "sites.safetensors")
    again = motley.load_model(folder / "sites.safetensors", into=model())
    assert abs(r2(again(x), held[1]) - result.scores["r2"]) < 1e-5


def nothing_scaled_unasked() -> None:
    """What is given stays as it is: on columns of one unit plain torch and the run agree."""
    plain = [((x - SHIFT.astype(np.float32)) / STRETCH.astype(np.float32), y) for x, y in [*sites, held]]
    result = motley.train(model, plain[:-1], test=plain[-1], problem="regression", rounds=15, cohort=4, lr=0.05)
    assert abs(r2(result.model(torch.tensor(plain[-1][0])), held[1]) - result.scores["r2"]) < 1e-5


def each_site() -> None:
    """How good the model is at each site, on the site's own rows."""
    for settings in ({"test": own}, {"client_test": 0.25}):
        result = trained(scale="pooled", **settings)
        last = result.records[-1].extra
        assert len(last["own_scores"]) == 4 and all(s is not None for s in last["own_scores"])
    result = trained(scale="pooled", test=own)
    scores = result.records[-1].extra["own_scores"]
    module = result.module()
    for (x, y), score in zip(own, scores, strict=True):
        assert abs(r2(module(torch.tensor(x)), y) - score) < 1e-4, (score, r2(module(torch.tensor(x)), y))


def a_site_with_a_hole() -> None:
    """NaN is told of by site, row and column."""
    broken = [(x.copy(), y) for x, y in sites]
    broken[2][0][7, 3] = np.nan
    try:
        motley.train(model, broken, test=held, problem="regression", rounds=1)
    except motley.InputError as error:
        print(error)
        assert all(word in str(error) for word in ("2", "7", "3"))
    else:
        raise AssertionError("NaN was taken")


if __name__ == "__main__":
    numbers_are_no_classes()
    taken_elsewhere(Path(sys.argv[1]))
    nothing_scaled_unasked()
    each_site()
    a_site_with_a_hole()
