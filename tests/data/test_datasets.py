"""Data sets by name."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from motley.core.errors import DataError, InputError, UnknownNameError
from motley.data.datasets import DATASETS, load
from motley.data.downloads import fetch, find
from motley.data.sources.images import read_idx


def test_digits_are_split_by_class_and_scaled() -> None:
    data = load("digits")
    assert data.x.dtype == torch.uint8
    assert data.input_shape == (1, 8, 8)
    assert len(data) + len(data.test_y) == 1797
    share = data.test_y.bincount() / (data.y.bincount() + data.test_y.bincount())
    assert torch.allclose(share, torch.full((10,), 0.2), atol=0.005)
    x = data.inputs(data.x)
    assert abs(float(x.mean())) < 0.01
    assert abs(float(x.std()) - 1) < 0.01


def test_a_data_set_is_read_once() -> None:
    assert load("digits") is load(" digits ")


def test_synthetic_follows_its_arguments() -> None:
    a, b = load("synthetic"), load("synthetic(clients=30)")
    assert torch.equal(a.x, b.x)
    assert set(a.groups["client"].tolist()) == set(range(30))
    sizes = a.groups["client"].bincount() + a.test_groups["client"].bincount()
    assert int(sizes.min()) >= 50
    assert torch.equal(a.test_groups["client"].bincount(), (sizes * 0.2).long())
    assert not torch.equal(load("synthetic(seed=1)").x[:50], a.x[:50])
    with pytest.raises(DataError, match="alpha=-1"):
        load("synthetic(alpha=-1)")


def test_synthetic_iid_clients_share_one_model() -> None:
    data = load("synthetic(iid=true, clients=5)")
    fit = torch.linalg.lstsq(data.x, torch.nn.functional.one_hot(data.y, 10).float()).solution
    first = data.groups["client"] == 0
    accuracy = ((data.x[~first] @ fit).argmax(1) == data.y[~first]).float().mean()
    assert accuracy > 0.7


def test_fashion_mnist_scaled_by_other_numbers() -> None:
    if find("fashion_mnist.npz") is None:
        pytest.skip("needs the files")
    data = load("fashion_mnist(mean=0.1307, deviation=0.3081)")
    x = data.x[:3].float() / 255
    assert torch.allclose(data.inputs(data.x[:3]), (x - 0.1307) / 0.3081, atol=1e-6)
    with pytest.raises(InputError, match="must be above 0"):
        load("fashion_mnist(deviation=0)")


def test_wrong_names_give_sentences() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'digits'"):
        load("digit")
    with pytest.raises(InputError, match="one data set"):
        load("digits+mnist")
    with pytest.raises(InputError, match="its arguments are: none"):
        load("digits(a=1)")


def test_every_data_set_has_a_summary() -> None:
    for entry in DATASETS:
        assert entry.summary.endswith("."), entry.name


def test_a_missing_file_without_network_gives_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pooch")
    monkeypatch.setenv("MOTLEY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find("x/y.gz") is None
    with pytest.raises(DataError, match=r"'toy' is not in .*data or .*motley and could not be downloaded") as caught:
        fetch("x/y.gz", "http://127.0.0.1:9/y.gz", "0" * 32, "toy")
    assert str(caught.value).count("\n") == 0


def test_a_damaged_file_gives_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTLEY_DATA", str(tmp_path))
    (tmp_path / "mnist.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read"):
        load("mnist")


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files(tmp_path: Path, packed: bool) -> None:
    values = np.arange(24, dtype=np.int32).reshape(2, 3, 4) * 1000
    raw = struct.pack(">BBBBIII", 0, 0, 12, 3, 2, 3, 4) + values.astype(">i4").tobytes()
    path = tmp_path / "a.idx"
    path.write_bytes(gzip.compress(raw) if packed else raw)
    assert np.array_equal(read_idx(path), values)
    path.write_bytes(raw[:-3])
    with pytest.raises(DataError, match="IDX"):
        read_idx(path)


@pytest.mark.parametrize(
    ("name", "file", "shape", "n"),
    [
        ("mnist", "mnist.npz", (1, 28, 28), 60000),
        ("fashion_mnist", "fashion_mnist.npz", (1, 28, 28), 60000),
        ("cifar10", "cifar10_test.npz", (3, 32, 32), 50000),
    ],
)
def test_image_sets(name: str, file: str, shape: tuple[int, ...], n: int) -> None:
    if find(file) is None:
        pytest.skip("needs the files")
    data = load(name)
    assert (data.input_shape, len(data), len(data.test_y)) == (shape, n, 10000)
    x = data.inputs(data.x[:4000])
    assert abs(float(x.mean())) < 0.02
    assert abs(float(x.std()) - 1) < 0.02
