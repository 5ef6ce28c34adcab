"""What people already have: arrays, torch data sets, flwr-datasets, LEAF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from motley.core.errors import DataError
from motley.data.adapters import from_arrays, from_clients, from_flower, from_hub, from_leaf, from_torch

RNG = np.random.default_rng(0)
X = RNG.normal(3, 2, (60, 5))
Y = np.arange(60) % 3


def test_arrays_are_split_and_scaled_where_asked() -> None:
    data = from_arrays(X, Y, groups={"who": np.arange(60) // 10}, scale=True)
    assert (len(data), len(data.test_y), data.n_classes, data.kind) == (48, 12, 3, "table")
    assert data.inputs(data.x).mean(0).abs().max() < 1e-5
    assert len(data.groups["who"]) == 48
    assert len(data.test_groups["who"]) == 12
    raw = from_arrays(X, Y)
    assert torch.allclose(raw.inputs(raw.x), raw.x)


def test_pictures_get_their_channel() -> None:
    assert from_arrays(np.zeros((6, 4, 4), np.uint8), [0, 1] * 3, 0.0).input_shape == (1, 4, 4)
    assert from_arrays(np.zeros((6, 8, 9, 3), np.uint8), [0, 1] * 3, 0.0).input_shape == (3, 8, 9)
    assert from_arrays(np.zeros((6, 3, 8, 9), np.uint8), [0, 1] * 3, 0.0).input_shape == (3, 8, 9)


def test_tokens() -> None:
    data = from_arrays(np.arange(20).reshape(4, 5), [0, 1, 0, 1], 0.0, kind="text")
    assert data.vocabulary == 20
    assert data.inputs(data.x).dtype == torch.int64


@pytest.mark.parametrize("shape", [(60,), (60, 1), (60, 3)])
def test_numbers_to_be_learned_stay_numbers(shape: tuple[int, ...]) -> None:
    y = RNG.normal(size=shape)
    data = from_arrays(X, y, classes=False)
    assert (data.n_classes, data.n_outputs, data.y.dtype) == (0, shape[-1] if len(shape) > 1 else 1, torch.float32)
    assert (len(data), len(data.test_y)) == (48, 12)
    both = torch.cat([data.y, data.test_y]).reshape(60, -1).sort(0).values
    torch.testing.assert_close(both, torch.from_numpy(y.reshape(60, -1)).float().sort(0).values)
    assert from_clients([(X[:20], y[:20]), (X[20:], y[20:])], (X, y), classes=False).labels.shape == (2, 0)
    with pytest.raises(DataError, match=r"Labels (have the shape|must be whole numbers from 0)"):
        from_arrays(X, y)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x": X, "y": Y[:5]}, "60 inputs but 5 labels"),
        ({"x": [["a"]], "y": [0]}, "not an array of numbers"),
        ({"x": X, "y": Y, "kind": "sound"}, "not 'sound'"),
        ({"x": X, "y": Y, "test": 2.0}, "at least 0 and below 1"),
        ({"x": X, "y": Y - 1}, "whole numbers from 0"),
    ],
)
def test_sentences(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises((DataError), match=words):
        from_arrays(**arguments)


class Items(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((1, 4, 4), float(index)), index % 2


def test_torch_data_sets() -> None:
    data = from_torch(Items(), Items())
    assert data.name == "items"
    assert (len(data), len(data.test_y), data.input_shape) == (20, 20, (1, 4, 4))
    assert float(data.x[7].mean()) == 7.0
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    assert len(from_torch(tensors).test_y) == 12


def test_one_data_set_per_client() -> None:
    made = from_clients([(X[:10], Y[:10]), (X[10:40], Y[10:40])], (X[40:], Y[40:]))
    assert made.sizes.tolist() == [10, 30]
    assert np.allclose(made.client(1).x.numpy(), X[10:40])
    assert from_clients([Items(), Items()], Items()).sizes.tolist() == [20, 20]
    with pytest.raises(DataError, match="at least one client"):
        from_clients([], (X, Y))


def leaf(users: dict[str, tuple[list[Any], list[Any]]]) -> str:
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(y) for _, y in users.values()],
            "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
        }
    )


def test_leaf_directory(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
    (tmp_path / "train" / "a.json").write_text(leaf({"ann": (X[:4].tolist(), [0, 1, 2, 0])}))
    (tmp_path / "train" / "b.json").write_text(leaf({"bob": (X[4:10].tolist(), [1] * 6)}))
    (tmp_path / "test" / "a.json").write_text(leaf({"ann": (X[10:12].tolist(), [0, 2])}))
    made = from_leaf(tmp_path)
    assert made.sizes.tolist() == [4, 6]
    assert np.allclose(made.client(1).x.numpy(), X[4:10])
    assert made.dataset.test_y.tolist() == [0, 2]
    assert made.dataset.groups["user"].tolist() == [0] * 4 + [1] * 6


def test_leaf_text_and_broken_files(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    path.write_text(leaf({"ann": (["to be ", "o be o"], ["o", "r"])}))
    made = from_leaf(path)
    assert (made.dataset.kind, made.dataset.n_classes, made.dataset.input_shape) == ("text", 80, (6,))
    path.write_text('{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1]], "y": [1]}}}')
    with pytest.raises(DataError, match="has not the 2 samples"):
        from_leaf(path)
    path.write_text('{"users": ["a"]}')
    with pytest.raises(DataError, match="is not LEAF JSON"):
        from_leaf(path)
    path.write_text(leaf({"ann": ([["1", "Mon", "hello"]], [0])}))
    with pytest.raises(DataError, match="LEAF inputs must be numbers"):
        from_leaf(path)
    with pytest.raises(DataError, match="no LEAF JSON file"):
        from_leaf(tmp_path / "nowhere")


@pytest.mark.filterwarnings("ignore")
def test_flwr_partitioner() -> None:
    datasets = pytest.importorskip("datasets")
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    partitioner = partitioners.DirichletPartitioner(
        num_partitions=3, partition_by="label", alpha=1.0, min_partition_size=2
    )
    partitioner.dataset = datasets.Dataset.from_dict({"image": X.astype(np.float32).tolist(), "label": Y.tolist()})
    made = from_flower(partitioner)
    assert made.n_clients == 3
    assert made.sizes.sum() == 60
    for i in range(3):
        part = partitioner.load_partition(i)
        assert np.allclose(made.client(i).x.numpy(), np.array(part["image"]), atol=1e-6)
        assert made.client(i).y.tolist() == part["label"]


@pytest.mark.filterwarnings("ignore")
def test_flwr_federated_dataset(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    flower = pytest.importorskip("flwr_datasets")
    whole = datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()})
    whole.to_json(tmp_path / "train.json")
    whole.select(range(7)).to_json(tmp_path / "test.json")
    fds = flower.FederatedDataset(dataset=str(tmp_path), partitioners={"train": 4}, cache_dir=str(tmp_path / "cache"))
    made = from_flower(fds)
    assert made.sizes.tolist() == [15] * 4
    assert len(made.dataset.test_y) == 7
    with pytest.raises(DataError, match="no partitioner for 'valid'"):
        from_flower(fds, "valid")
    with pytest.raises(DataError, match="there are: x, y"):
        from_flower(fds, y="colour")


def test_hub_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("offline")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match=r"'a/b' cannot be read from Hugging Face: offline\."):
        from_hub("a/b")


@pytest.mark.filterwarnings("ignore")
def test_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"img": X.tolist(), "label": Y.tolist()})
    monkeypatch.setattr(
        datasets, "load_dataset", lambda name, split: whole.select(range(9)) if split == "test" else whole
    )
    data = from_hub("someone/things")
    assert (data.name, len(data), len(data.test_y), data.n_classes) == ("things", 60, 9, 3)
