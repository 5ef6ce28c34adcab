"""Splits of a recipe: by clients with folds, by samples, within clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from motley.core.errors import InputError
from motley.runtime.experiment import Experiment, prepare
from motley.runtime.recipe import load


def experiment(**changes: Any) -> Experiment:
    return prepare(load("digits", {"partition": "dirichlet(alpha=0.5)", "clients": 10, "cohort": 4, **changes}))


def test_without_a_split_nothing_changes() -> None:
    e = experiment()
    assert e.validation is None
    assert len(e.dataset.test_y) == 359


def test_folds_by_clients_cover_everything_once() -> None:
    whole = experiment(split="by_clients(folds=5)")
    n = len(whole.dataset.y)
    assert n == 1438 + 359  # the test samples are dealt out too
    tested = 0
    for fold in range(5):
        e = experiment(split="by_clients(folds=5)", fold=fold)
        assert e.validation is not None
        assert e.data.n_clients == 6
        tested += len(e.dataset.test_y)
        assert int(e.data.sizes.sum()) + len(e.dataset.test_y) + len(e.validation.test_y) == n
        train = e.dataset.x[torch.from_numpy(e.data.partition.index)].flatten(1)
        assert train.shape[0] == int(e.data.sizes.sum())
    assert tested == n


def test_inner_folds_and_bad_folds() -> None:
    spec = "by_clients(folds=4, inner=true)"
    sizes = {len(experiment(split=spec, fold=fold).dataset.test_y) for fold in range(3)}
    assert len(sizes) == 1  # the same test set, three validation sets
    experiment(split=spec, fold=11)
    with pytest.raises(InputError, match=r"fold is 12, but this split has 12 of them: 0\.\.11"):
        experiment(split=spec, fold=12)
    with pytest.raises(InputError, match=r"needs 3\.\.10 folds \(the number of clients\), not 11"):
        experiment(split="by_clients(folds=11)")
    with pytest.raises(InputError, match=r"needs 3\.\.10 folds \(the number of clients\), not 2"):
        experiment(split="by_clients(folds=2)")
    with pytest.raises(InputError, match="no split named 'by_client'; did you mean 'by_clients'"):
        experiment(split="by_client")
    with pytest.raises(InputError, match="one split"):
        experiment(split="by_clients+by_samples")


def test_the_data_seed_fixes_the_clients() -> None:
    def facts(**changes: Any) -> list[list[int]]:
        e = experiment(split="by_clients", **changes)
        return [e.data.sizes.tolist(), e.dataset.test_y.tolist()]

    assert facts(seed=1, data_seed=7) == facts(seed=2, data_seed=7)
    assert facts(seed=1) != facts(seed=2)
    a, b = (experiment(seed=seed, data_seed=7).net.initial() for seed in (1, 2))
    assert not torch.equal(a, b)


def test_local_standardisation_reaches_held_out_clients() -> None:
    e = experiment(skew="local_standardise", split="by_clients(folds=5)")
    assert e.dataset.scaling is None
    x = e.dataset.inputs(e.dataset.test_x)
    assert abs(float(x.mean())) < 1e-4  # every test client has mean 0 in its own eyes
    assert float(x.std()) == pytest.approx(1.0, abs=0.1)


def test_by_samples() -> None:
    e = experiment(split="by_samples(fraction=0.25)")
    assert e.validation is not None
    assert len(e.dataset.test_y) == 359
    assert int(e.data.sizes.sum()) + len(e.validation.test_y) == 1438
    other = experiment(split="by_samples(fraction=0.25)", fold=1)
    assert other.validation is not None
    assert not torch.equal(e.validation.test_x, other.validation.test_x)


def test_within_clients() -> None:
    e = experiment(split="within_clients(validation=0.1, test=0.2)")
    assert e.validation is not None
    held = len(e.validation.test_y), len(e.dataset.test_y)
    assert int(e.data.sizes.sum()) + sum(held) == 1438
    np.testing.assert_allclose(np.array(held) / 1438, [0.1, 0.2], atol=0.02)
    own = experiment(split="within_clients(validation=0.1, test=0)")
    assert len(own.dataset.test_y) == 359
