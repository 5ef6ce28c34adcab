"""Torch data sets whose items change at random: read anew in every epoch, the same again in every run."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

import motley
from motley.client.minibatch import minibatches
from motley.core.errors import DataError, InputError
from motley.core.keys import Key
from motley.data.adapters import from_arrays, from_clients, from_torch
from motley.data.checks import settled
from motley.data.federated import FederatedData, Partition

RNG = np.random.default_rng(5)
Y = np.arange(60) % 3
X = (RNG.normal(size=(60, 5)) + 2 * Y[:, None]).astype(np.float32)
SETTINGS: dict[str, Any] = {"rounds": 2, "clients": 4, "cohort": 2, "epochs": 2.0, "test": (X, Y), "batch_size": 4}


class Noisy(Dataset[tuple[Any, Any]]):
    """Items with noise from the generators that data sets draw from; ``reads`` counts."""

    def __init__(self, noise: float = 1.0) -> None:
        self.noise, self.reads = noise, 0

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        self.reads += 1
        drawn = torch.randn(5).numpy() + np.random.normal(size=5) + random.gauss(0.0, 1.0)
        return (X[i] + self.noise * drawn).astype(np.float32), Y[i]


class Stubborn(Noisy):
    """Draws from a generator of its own."""

    rng = np.random.default_rng()

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return (X[i] + self.rng.normal(size=5)).astype(np.float32), Y[i]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 3)


def divided(data: Any = None) -> FederatedData:
    whole = from_torch(data or Noisy(), (X, Y))
    return settled(FederatedData(whole, Partition(np.arange(60), np.array([0, 10, 60]))))


def test_items_are_read_anew_in_every_epoch_from_the_key() -> None:
    data = divided().client(0)
    key = Key.root(3).tensor()
    one, two = data.again(key, 0), data.again(key, 1)
    assert not torch.equal(one.x, data.x)
    assert not torch.equal(one.x, two.x)
    assert torch.equal(one.y, torch.from_numpy(Y[:10]))
    assert torch.equal(data.again(key, 1).x, two.x)
    assert not torch.equal(data.again(Key.root(4).tensor(), 1).x, two.x)


def test_minibatches_hold_the_samples_of_their_epoch() -> None:
    data = divided().client(0)
    key = Key.root(3).tensor()
    batches = [batch for batch, _ in minibatches(key, data, 5, 4)]
    for epoch in (0, 1):
        seen = torch.cat([batch.x for batch in batches[2 * epoch : 2 * epoch + 2]])
        fresh = data.again(key, epoch).x
        assert {tuple(row.tolist()) for row in seen} == {tuple(row.tolist()) for row in fresh}


def test_loop_and_pool_agree_and_a_second_run_gives_the_same() -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]
    runs = [motley.train(model(), Noisy(), executor=name, **SETTINGS) for name in ("loop", "pool(workers=2)", "loop")]
    assert torch.equal(runs[0].params, runs[1].params)
    assert torch.equal(runs[0].params, runs[2].params)
    torch.manual_seed(123)
    assert torch.equal(before[0], torch.get_rng_state()), "the generators of the user's own go on as they were"
    assert before[1] == random.getstate()
    assert (before[2] == np.random.get_state()[1]).all()  # type: ignore[index]
    held = motley.train(model(), from_torch(Noisy(), (X, Y), reread=False), **{**SETTINGS, "test": None})
    assert not torch.equal(held.params, runs[0].params)


def test_automatic_choice_never_freezes_them() -> None:
    auto = motley.train(model(), Noisy(), **SETTINGS)
    assert auto.summary["executor"] in ("loop", "pool")
    with pytest.raises(
        InputError, match="Items of 'noisy' change at random with every reading, which executor=batched"
    ):
        motley.train(model(), Noisy(), executor="batched(device=cpu)", **SETTINGS)


def test_a_data_set_that_does_not_change_is_read_once() -> None:
    quiet = Noisy(noise=0.0)
    data = from_torch(quiet, (X, Y))
    assert data.source is None
    assert quiet.reads == 60 + 4 * 16
    arrays = motley.train(model(), (X, Y), executor="loop", **SETTINGS)
    assert torch.equal(arrays.params, motley.train(model(), quiet, executor="loop", **SETTINGS).params)


def test_rare_changes_are_seen() -> None:
    class Rarely(Noisy):
        def __getitem__(self, i: int) -> tuple[Any, Any]:
            return (X[i] + (torch.rand(()) < 0.2).item()).astype(np.float32), Y[i]

    assert from_torch(Rarely(), (X, Y)).source is not None


def test_clients_that_change_beside_clients_that_do_not() -> None:
    homes = [Subset(Noisy(), range(20)), (X[20:40], Y[20:40]), Subset(Noisy(0.0), range(40, 60))]
    data = settled(from_clients(homes, (X, Y)))
    key = Key.root(0).tensor()
    for client, changes in enumerate((True, False, False)):
        own = data.client(client)
        assert torch.equal(own.again(key, 0).x, own.x) != changes
        assert torch.equal(own.again(key, 0).y, own.y)
    again = data.client(0).again(key, 0).x - torch.from_numpy(X[:20])
    assert again.abs().max() < 20, "each row is the item that it was"


def test_images_labels_and_scaling_go_the_same_way() -> None:
    class Pictures(Dataset[tuple[Any, Any]]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            return torch.full((4, 5, 3), float(i)) + torch.rand(4, 5, 3), i % 2

    whole = from_torch(Pictures(), 0.25, scale=True)
    data = settled(FederatedData(whole, Partition(np.arange(len(whole)), np.array([0, 3, len(whole)]))))
    own = data.client(0)
    fresh = own.again(Key.root(1).tensor(), 0)
    assert fresh.x.shape == (3, 3, 4, 5)
    assert torch.equal(fresh.y, own.y)
    torch.testing.assert_close(fresh.x, own.x, atol=0.5, rtol=0)
    assert not torch.equal(fresh.x, own.x)


def test_what_would_hold_them_is_refused() -> None:
    for more in ({"public": "held(fraction=0.2)"}, {"scale": "per_client"}):
        with pytest.raises(DataError, match="so none can be set aside or scaled once and for all"):
            motley.train(model(), Noisy(), **SETTINGS, **more)


def test_generators_that_cannot_be_seeded_are_told() -> None:
    with pytest.warns(UserWarning, match="Items of Stubborn change with every reading, whatever the seeds"):
        assert from_torch(Stubborn(), (X, Y)).source is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_torch(Noisy(), (X, Y))
        from_arrays(X, Y)
