"""Samples that the server holds: nobody trains on them, and nobody is judged on them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from motley.core.errors import DataError, InputError, RecipeError, UnknownNameError
from motley.core.keys import Key
from motley.core.types import Data
from motley.data.dataset import Dataset, Scaling
from motley.data.public import balanced, set_public_aside
from motley.methods import make_method
from motley.runtime.experiment import prepare
from motley.runtime.recipe import load
from tests import tiny

KEY = Key.root(1)


def numbered() -> Dataset:
    """200 training and 100 test samples of four classes; a sample's input is its number."""
    x, test_x = torch.arange(200.0)[:, None], torch.arange(1000.0, 1100.0)[:, None]
    groups = {"home": torch.arange(200) // 10}
    return Dataset("numbered", x, torch.arange(200) % 4, test_x, torch.arange(100) % 4, 4, groups=groups)


def aside(spec: str, dataset: Dataset) -> tuple[Dataset, Data]:
    left, public = set_public_aside(spec, dataset, KEY)
    assert public is not None
    return left, public


@pytest.mark.parametrize(("spec", "size"), [("held", 4), ("held(fraction=0.2)", 40)])
def test_held_samples_are_taken_from_training(spec: str, size: int) -> None:
    left, public = aside(spec, numbered())
    assert len(public.y) == size
    mine, theirs = set(public.x[:, 0].tolist()), set(left.x[:, 0].tolist())
    assert not mine & theirs
    assert mine | theirs == set(range(200))
    assert torch.bincount(public.y).tolist() == [size // 4] * 4
    assert torch.equal(public.y, public.x[:, 0].long() % 4)
    assert torch.equal(left.groups["home"], left.x[:, 0].long() // 10)
    assert torch.equal(left.test_x, numbered().test_x)


def test_test_samples_are_taken_from_the_test_set() -> None:
    left, public = aside("test(fraction=0.2)", numbered())
    assert torch.equal(left.x, numbered().x)
    assert sorted([*public.x[:, 0].tolist(), *left.test_x[:, 0].tolist()]) == numbered().test_x[:, 0].tolist()
    assert torch.bincount(public.y).tolist() == [5] * 4


def test_they_are_as_the_network_takes_them_and_the_same_again() -> None:
    scaled = replace(numbered(), scaling=Scaling(0.5, 1.0, 2.0))
    (_, plain), (_, public) = aside("held", numbered()), aside("held", scaled)
    assert torch.equal(public.x, (plain.x * 0.5 - 1.0) / 2.0)
    _, other = set_public_aside("held", numbered(), Key.root(2))
    assert other is not None
    assert not torch.equal(other.x, plain.x)


def test_numbers_can_be_held_too() -> None:
    d = numbered()
    left, public = aside("held(fraction=0.1)", replace(d, y=d.x[:, 0], test_y=d.test_x[:, 0], n_classes=0))
    assert (len(left), len(public.y)) == (180, 20)


def test_nothing_is_held_unless_told() -> None:
    whole = numbered()
    assert set_public_aside(None, whole, KEY) == (whole, None)


@pytest.mark.parametrize(
    ("spec", "error", "sentence"),
    [
        ("held(fraction=0.0)", InputError, "above 0 and up to 1"),
        ("held(fraction=1.0)", DataError, "leaves nothing on one side"),
        ("held(fraction=0.001)", DataError, "leaves nothing on one side"),
        ("held+test", InputError, "one public source, but 'held[+]test' names 2"),
        ("hold", UnknownNameError, "no public source named 'hold'; did you mean 'held'"),
    ],
)
def test_what_cannot_be_held_is_told(spec: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        set_public_aside(spec, numbered(), KEY)


def test_equally_many_of_every_class() -> None:
    _, public = aside("held(fraction=0.5)", numbered())
    some = balanced(public, 4, 7, KEY)
    assert torch.bincount(some.y).tolist() == [7] * 4
    assert len(set(some.x[:, 0].tolist())) == 28
    assert torch.equal(some.x, balanced(public, 4, 7, KEY).x)
    with pytest.raises(DataError, match="There are 25 public samples of class 0, fewer than the 26 wanted; raise the"):
        balanced(public, 4, 26, KEY)


def test_no_client_of_an_experiment_holds_a_public_sample() -> None:
    e = prepare(load("digits", {"public": "held(fraction=0.1)", "clients": 5, "method": "fedavg_ft(per_class=5)"}))
    assert e.public is not None
    rows = {tuple(row) for row in e.dataset.inputs(e.dataset.x).flatten(1).tolist()}
    assert int(e.data.sizes.sum()) == len(e.dataset)
    whole = prepare(load("digits", {"clients": 5}))
    assert len(whole.dataset) == len(e.dataset) + len(e.public.y)
    alike = sum(tuple(row) in rows for row in e.public.x.flatten(1).tolist())
    assert alike == 0


def test_a_part_that_trains_on_the_server_says_what_it_needs() -> None:
    with pytest.raises(
        RecipeError, match="'retrain_head' trains on samples that the server holds; say where they come"
    ):
        tiny.experiment(make_method("fedavg_ft"))
