"""What every fleet keeps: same seed, same world; layers compose; rows agree with columns."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest

from motley.core.errors import InputError, UnknownNameError
from motley.core.keys import Key
from motley.fleet.fleet import Fate, Fleet
from motley.fleet.layers import FLEETS, make_fleet

KEY = Key.root(11)
EVERYTHING = (
    "speed_classes+uniform_spread(ratio=3)+limited(fraction=0.5, slowdown=4)+affordable+bandwidth(up=1e6, spread=10)"
    "+delay(probability=0.4, maximum_rounds=5, seconds=1, maximum_seconds=9)+loss(probability=0.2)"
    "+bernoulli(p=0.8)+persistent(p=0.9, rounds=3)+clustered(p=[0.9, 0.7])+diurnal+crash(probability=0.1, rounds=2)"
)


def everything(n: int = 60, key: Key = KEY) -> Fleet:
    return make_fleet(EVERYTHING, n, key, clusters=np.arange(n) % 2)


def same_world(a: Fleet, b: Fleet) -> bool:
    columns = all(np.array_equal(getattr(a, c), getattr(b, c)) for c in ("flops", "down", "up", "limited"))
    here = all(np.array_equal(a.present(t, 700.0 * t), b.present(t, 700.0 * t)) for t in range(1, 8))
    ids = np.arange(a.n_clients)
    fates = all(
        np.array_equal(x, y) for t in range(1, 8) for x, y in zip(a.fates(ids, t), b.fates(ids, t), strict=True)
    )
    return columns and here and fates


def test_ideal_fleet_does_nothing() -> None:
    fleet = make_fleet("ideal", 5, KEY)
    assert fleet.present(1, 0.0).all()
    assert fleet.fate(3, 1) == Fate()
    assert len(set(fleet.flops)) == len(set(fleet.up)) == 1
    assert not fleet.limited.any()


def test_same_seed_same_world_and_other_seed_another() -> None:
    assert same_world(everything(), everything())
    assert not same_world(everything(), everything(key=Key.root(12)))


def test_survives_pickle() -> None:
    fleet = everything()
    assert same_world(fleet, pickle.loads(pickle.dumps(fleet)))


def test_fate_of_one_agrees_with_fates_of_many() -> None:
    fleet = everything()
    ids = np.array([41, 3, 3, 17])
    for t in (1, 2, 9):
        many = fleet.fates(ids, t)
        assert [fleet.fate(int(i), t) for i in ids] == [many.row(j) for j in range(len(ids))]


def test_a_client_does_not_depend_on_how_many_there_are() -> None:
    spec = "uniform_spread+affordable+bernoulli(p=0.5)"
    small, large = make_fleet(spec, 10, KEY), make_fleet(spec, 1000, KEY)
    np.testing.assert_array_equal(small.flops, large.flops[:10])
    np.testing.assert_array_equal(small.present(4, 0.0), large.present(4, 0.0)[:10])
    assert small.fate(7, 4) == large.fate(7, 4)


def test_adding_a_layer_leaves_the_others_alone() -> None:
    alone = make_fleet("limited(fraction=0.3)+loss(probability=0.3)", 100, KEY)
    more = make_fleet("uniform_spread+limited(fraction=0.3)+bernoulli+loss(probability=0.3)", 100, KEY)
    np.testing.assert_array_equal(alone.limited, more.limited)
    ids = np.arange(100)
    np.testing.assert_array_equal(alone.fates(ids, 3).lost, more.fates(ids, 3).lost)


def test_a_layer_used_twice_draws_twice() -> None:
    fleet = make_fleet("loss(probability=0.5)+loss(probability=0.5)", 20_000, KEY)
    assert fleet.fates(np.arange(20_000), 1).lost.mean() == pytest.approx(0.75, abs=0.02)


def test_everything_composes_on_one_client() -> None:
    fleet = everything(400)
    ids = np.arange(400)
    fates = fleet.fates(ids, 3)
    hit = fates.lost & (fates.delay > 0) & (fates.delay_rounds > 0) & np.isfinite(fates.affordable)
    assert (hit & fleet.limited & ~fleet.present(3, 0.0)).any()
    assert fleet.layers[0] == "ideal"
    assert fleet.layers[-1] == "crash(probability=0.1, rounds=2)"


def test_unknown_layers_and_arguments_are_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'bernoulli'"):
        make_fleet("bernouli", 5, KEY)
    with pytest.raises(InputError, match="its arguments are: p"):
        make_fleet("bernoulli(q=0.1)", 5, KEY)
    with pytest.raises(InputError, match="from 0 to 1"):
        make_fleet("bernoulli(p=1.5)", 5, KEY)
    with pytest.raises(InputError, match="whole number"):
        make_fleet("persistent(rounds=1.5)", 5, KEY)
    with pytest.raises(InputError, match="at least one client"):
        make_fleet("ideal", 0, KEY)
    with pytest.raises(InputError, match="needs as many values of 'clusters'"):
        make_fleet("ideal", 5, KEY, clusters=np.zeros(4, np.int64))


def test_every_layer_has_a_summary_and_hides_its_internals() -> None:
    assert len(list(FLEETS)) >= 18
    for entry in FLEETS:
        assert entry.summary.endswith(".") or ":" in entry.summary, entry.name
        assert not {"fleet", "key"} & set(entry.parameters)


def test_a_million_clients_cost_milliseconds() -> None:
    fleet = make_fleet("uniform_spread+bernoulli(p=0.5)+loss", 1_000_000, KEY)
    times = []
    for t in range(1, 6):
        start = time.perf_counter()
        fleet.present(t, 0.0)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.1  # about 0.01 s on one quiet core
    assert sum(c.nbytes for c in (fleet.flops, fleet.down, fleet.up, fleet.limited)) <= 25 * 1_000_000
