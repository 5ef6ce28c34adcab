"""Whose statistics scale the inputs: chosen, never silent."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from motley.core.errors import DataError
from motley.data.adapters import from_arrays, from_clients
from motley.data.dataset import Scaling
from motley.data.datasets import load
from motley.data.own_tests import with_tests
from motley.data.preparation import Preparation
from motley.data.scaling import each_by_itself, scaled_apart, statistics, unscaled
from motley.data.split import by_clients, judged_on

RNG = np.random.default_rng(4)
SITES = [(RNG.normal(m, s, (40, 3)).astype(np.float32), np.arange(40) % 2) for m, s in ((0, 1), (100, 5), (-7, 0.1))]
HELD = (RNG.normal(50, 9, (30, 3)).astype(np.float32), np.arange(30) % 2)


def test_statistics_are_mean_and_deviation_also_far_from_zero() -> None:
    x = torch.from_numpy(RNG.normal([1e4, 3.0], [1.0, 0.01], (500, 2)))
    found = statistics(x.float())
    assert torch.allclose(torch.as_tensor(found.mean), x.mean(0).float())
    torch.testing.assert_close(torch.as_tensor(found.std), x.float().double().std(0, correction=0).float())


def test_a_constant_column_is_moved_and_not_blown_up() -> None:
    found = statistics(torch.full((50, 1), 0.1))
    assert float(torch.as_tensor(found.std)) == 1.0
    assert found(torch.tensor([[0.2]])).item() == pytest.approx(0.1)


def test_images_are_scaled_by_channel() -> None:
    x = torch.from_numpy(RNG.normal(size=(20, 3, 4, 5)))
    found = statistics(x)
    assert torch.as_tensor(found.mean).shape == (3, 1, 1)
    torch.testing.assert_close(torch.as_tensor(found.mean).flatten(), x.mean((0, 2, 3)).float())


def test_given_data_stay_as_they_are() -> None:
    data = from_clients(SITES, HELD)
    assert torch.equal(data.client(1).x, torch.from_numpy(SITES[1][0]))
    assert scaled_apart("own", data) is data


def test_pooled_is_over_all_clients() -> None:
    data = scaled_apart("pooled", from_clients(SITES, HELD))
    everything = torch.cat([data.client(i).x for i in range(3)])
    assert everything.mean(0).abs().max() < 1e-5
    assert (everything.std(0, correction=0) - 1).abs().max() < 1e-4
    assert scaled_apart("pooled", data) is data, "what is scaled so already is not scaled again"


def test_per_client_each_by_its_own_and_held_out_samples_by_theirs() -> None:
    data = scaled_apart("per_client", from_clients(SITES, HELD))
    for i, (x, _) in enumerate(SITES):
        expected = (x - x.mean(0, dtype=np.float64)) / x.std(0, dtype=np.float64)
        np.testing.assert_allclose(data.client(i).x.numpy(), expected, atol=2e-4)
    held = HELD[0]
    expected = (held - held.mean(0, dtype=np.float64)) / held.std(0, dtype=np.float64)
    np.testing.assert_allclose(data.dataset.inputs(data.dataset.test_x).numpy(), expected, atol=1e-5)
    assert data.dataset.stored is not None


def test_clients_held_out_have_no_single_scaling() -> None:
    data = by_clients(each_by_itself(from_clients(SITES, HELD)), np.array([0, 1]), np.array([2]))
    assert data.dataset.test_x.mean(0).abs().max() < 1e-4
    with pytest.raises(DataError, match="no single scaling belongs to this model"):
        Preparation.of(data.dataset).module(torch.nn.Linear(3, 2))


def test_a_scaling_stays_known_where_inputs_are_stored_scaled() -> None:
    dataset = from_arrays(*SITES[1], scale=True)
    judged = judged_on(dataset, torch.arange(4))
    assert Preparation.of(judged).scaling is dataset.scaling


def test_text_cannot_be_scaled() -> None:
    text = from_arrays(np.arange(20).reshape(4, 5), [0, 1, 0, 1], 0.0, kind="text")
    with pytest.raises(DataError, match="holds tokens, which cannot be scaled"):
        unscaled("pooled", text)


def test_a_preparation_comes_back_from_json_as_it_was() -> None:
    for dataset in (load("digits"), from_arrays(*SITES[0], scale=True), from_arrays(*SITES[0])):
        old = Preparation.of(dataset)
        new = Preparation.from_dict(old.as_dict())
        assert (new.scale, new.arranged, new.told) == (old.scale, old.arranged, old.told)
        x = dataset.test_x
        assert old.scaling is not None
        assert new.scaling is not None
        assert torch.equal(old.scaling(x), new.scaling(x))
    none = Preparation.from_dict(Preparation("own", None).as_dict())
    assert none.scaling is None
    assert Scaling().idle


def test_each_clients_own_test_samples_are_scaled_as_its_training_samples() -> None:
    data = with_tests(from_clients(SITES, HELD), [10, 10, 10])
    for how in ("pooled", "per_client"):
        made = scaled_apart(how, data)
        assert made.own_tests is not None
        for i, (x, _) in enumerate(SITES):
            base = x if how == "per_client" else np.concatenate([x for x, _ in SITES])
            raw = HELD[0][10 * i : 10 * i + 10]
            expected = (raw - base.mean(0, dtype=np.float64)) / base.std(0, dtype=np.float64)
            np.testing.assert_allclose(made.own_tests.client(i).x.numpy(), expected, rtol=1e-4, atol=1e-4)
