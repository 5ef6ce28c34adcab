"""Data that cannot be used: each is refused with one sentence that says where it is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import motley
from motley.core.errors import DataError
from motley.data.adapters import from_arrays, from_clients, from_torch
from motley.data.checks import check_finite
from motley.data.federated import FederatedData, Partition

RNG = np.random.default_rng(3)
X = RNG.normal(size=(40, 4)).astype(np.float32)
Y = np.arange(40) % 3
NAN = X.copy()
NAN[7, 2] = np.nan


def spoiled(value: float, *place: int) -> np.ndarray:
    x = X.copy()
    x[place] = value
    return x


@pytest.mark.parametrize(
    ("x", "y", "rest", "words"),
    [
        (NAN, Y, {}, r"The inputs hold NaN in row 7, column 2 \(1 of 40 rows hold such\); mend or remove"),
        (spoiled(np.inf, 3, 0), Y, {}, "The inputs hold infinity in row 3, column 0"),
        (X, Y, {"test": (NAN, Y)}, "The test inputs hold NaN in row 7, column 2"),
        (X, np.where(Y == 2, np.nan, Y), {}, r"The labels hold NaN in row 2 \(13 of 40 rows"),
        (X, NAN[:, 2], {"classes": False}, "The targets hold NaN in row 7"),
        (X, NAN, {"classes": False}, "The targets hold NaN in row 7, column 2"),
        (X, X[:, 0], {}, "whole numbers from 0, found .*; where numbers are to be learned, say problem='regression'"),
        (X, np.eye(3)[Y], {}, r"Labels are one-hot, .* give labels.argmax\(1\)"),
        (X, X, {}, r"Labels have the shape \(40, 4\), .* say problem='regression'"),
        (X, np.array(["a", "b", "c"])[Y], {}, r"labels are not an array of numbers, but of type <U1; numpy.unique"),
        (X.astype(object), Y, {}, "inputs are not an array of numbers, but of type object"),
        (X + 1j, Y, {}, "inputs are not an array of numbers, but of type complex"),
        (X, Y, {"test": (X[:, :3], Y)}, r"test inputs of 'arrays' have the shape \(3,\) .* training inputs \(4,\)"),
        (X, Y, {"test": -0.1}, "must be at least 0 and below 1, not -0.1"),
    ],
)
def test_arrays(x: Any, y: Any, rest: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_arrays(x, y, **rest)


def test_the_place_within_an_image_is_told() -> None:
    images = torch.zeros(5, 1, 3, 3)
    images[4, 0, 1, 2] = float("nan")
    with pytest.raises(DataError, match=r"hold NaN in row 4, at \(0, 1, 2\)"):
        check_finite(images, "inputs")


def test_whole_numbers_as_floats_are_labels_and_a_column_is_a_vector() -> None:
    data = from_arrays(X, Y.astype(float)[:, None], test=0.0)
    assert torch.equal(data.y, torch.from_numpy(Y))
    assert from_arrays(X, Y, classes=False).y.dtype == torch.float32


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ((NAN, Y), "The inputs of client 1 hold NaN in row 7, column 2"),
        ((X[:, :3], Y), r"Client 1 has inputs of shape \(3,\) per sample, client 0 of \(4,\); all clients"),
        ((X, Y[:9]), "Client 1 has 40 inputs but 9 labels"),
        ((X, Y, Y), r"A pair \(x, y\) has two entries, not 3"),
    ],
)
def test_client_by_client(second: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_clients([(X, Y), second], (X, Y))


class Items(Dataset[Any]):
    """A data set whose items are what a function says."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> Any:
        return self.item(i)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y, strict=True))


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (lambda i: {"x": X[i], "y": Y[i]}, r"Items of Items are dicts \(x, y\); they must be pairs \(input, label\)"),
        (lambda i: (X[i], Y[i], 1.0), "Items of Items have 3 entries"),
        (lambda i: X[i], "Items of Items are of type ndarray"),
        (lambda i: (X[i, : 2 + i % 2], Y[i]), r"input of item 1 of Items has the shape \(3,\), that of item 0 \(2,\)"),
        (lambda i: 1 / 0, "Item 0 of Items cannot be read: ZeroDivisionError: division by zero"),
    ],
)
def test_torch_data_sets(item: Any, words: str) -> None:
    for read in (lambda: from_torch(Items(item)), lambda: from_clients([Items(item)], (X, Y))):
        with pytest.raises(DataError, match=words):
            read()


def test_streams_have_no_numbers() -> None:
    with pytest.raises(DataError, match="Stream is an IterableDataset: its samples have no numbers"):
        from_torch(Stream())
    with pytest.raises(DataError, match="Data of type object cannot be read: give a pair"):
        from_clients([object()], (X, Y))


def test_data_that_came_divided_are_looked_at_too() -> None:
    good = from_arrays(X, Y, (X, Y))
    object.__setattr__(good, "x", torch.from_numpy(NAN))
    data = FederatedData(good, Partition(np.arange(40), np.array([0, 5, 40])))
    with pytest.raises(DataError, match="The inputs of client 1 hold NaN in row 2, column 2"):
        motley.train("logistic", data, rounds=1, cohort=1)


@pytest.mark.parametrize("test", [0.0, (X[:0], Y[:0])])
def test_nothing_to_be_judged_on(test: Any) -> None:
    with pytest.raises(DataError, match="has no test samples, so no model could be judged; set some aside"):
        motley.train("logistic", (X, Y), test=test, rounds=1, clients=4, cohort=2)
