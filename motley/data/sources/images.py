"""Image data sets: digits, MNIST, Fashion-MNIST, CIFAR-10; uint8 [N, C, H, W]."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.core.errors import DataError
from motley.core.keys import Key
from motley.data.dataset import Dataset, Scaling
from motley.data.downloads import fetch, find, read_npz
from motley.data.split import stratified

Bytes = NDArray[np.uint8]


def digits() -> Dataset:
    """scikit-learn's 8x8 digits: 1797 images of 10 classes, embedded in that package; a fifth is the test set."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = raw.images.astype(np.uint8)[:, None]
    y = raw.target.astype(np.int64)
    test = stratified(y, 0.2, Key.root(0).fold("digits").generator())
    return _images("digits", x[~test], y[~test], x[test], y[test], [0.3053], [0.3760], scale=1 / 16)


def mnist() -> Dataset:
    """MNIST handwritten digits, 60,000 + 10,000 of 28x28, 10 classes; group 'writer'."""
    base = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    path = find("mnist.npz")
    if path is not None:
        keys = ("x_train", "y_train", "x_test", "y_test", "writer_train", "writer_test")
        x, y, xt, yt, writer, writer_test = read_npz(path, *keys)
    else:
        x, y, xt, yt = _idx_set("mnist", base, _MNIST)
        writer, writer_test = _mnist_writers()
    return _images(
        "mnist",
        x[:, None],
        y,
        xt[:, None],
        yt,
        [0.1307],
        [0.3081],
        groups={"writer": _long(writer)},
        test_groups={"writer": _long(writer_test)},
    )


def fashion_mnist(mean: float = 0.2860, deviation: float = 0.3530) -> Dataset:
    """Fashion-MNIST, 60,000 + 10,000 pictures of clothes, 28x28, 10 classes.

    ``mean`` and ``deviation`` are what pixels (0 to 1) are scaled by; the defaults are those of its training images.
    """
    if not deviation > 0:
        raise DataError(f"fashion_mnist(deviation={deviation}) cannot scale pixels; it must be above 0.")
    base = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    path = find("fashion_mnist.npz")
    if path is not None:
        x, y, xt, yt = read_npz(path, "x_train", "y_train", "x_test", "y_test")
    else:
        x, y, xt, yt = _idx_set("fashion_mnist", base, _FASHION)
    return _images("fashion_mnist", x[:, None], y, xt[:, None], yt, [mean], [deviation])


def cifar10() -> Dataset:
    """CIFAR-10, 50,000 + 10,000 colour pictures of 32x32, 10 classes."""
    coded = [find(f"cifar10_{part}.npz") for part in (*(f"train_{i}" for i in range(1, 6)), "test")]
    batches = [_cifar_coded(path) for path in coded if path is not None]
    if len(batches) < len(coded):
        batches = _cifar_binary()
    x = np.concatenate([x for x, _ in batches[:-1]])
    y = np.concatenate([y for _, y in batches[:-1]])
    xt, yt = batches[-1]
    return _images("cifar10", x, y, xt, yt, [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])


def emnist(classes: str = "byclass", per_class: int = 0) -> Dataset:
    """EMNIST, 116,323 handwritten characters of 28x28 (the test part of "By Class"); a fifth is the test set here.

    ``classes``: 'byclass' (0-9, A-Z, a-z: 62), 'letters' (26, upper and lower case together), 'a_to_j' (the
    first ten of these), 'digits' (10), 'upper' or 'lower' (26), 'merged' (47, as in EMNIST "Balanced": lower case of
    letters that look alike is upper case).
    ``per_class``: so many of each class at most, drawn; 0: all.
    """
    known = [*_EMNIST_CLASSES, "merged"]
    if classes not in known:
        raise DataError(f"emnist has no classes='{classes}'; it has: {', '.join(known)}.")
    if per_class < 0:
        raise DataError(f"emnist(per_class={per_class}) keeps nothing; it must be 1 or more, or 0 for all.")
    path = find("emnist_byclass_test.npz")
    x, y = read_npz(path, "x", "y") if path is not None else _emnist_source()
    new, n_classes = _emnist_labels(classes)
    kept = new[y] >= 0
    x, label = x[kept], new[y[kept]]
    if per_class:
        some = _at_most(label, per_class, Key.root(0).fold("emnist per class", classes))
        x, label = x[some], label[some]
    test = stratified(label, 0.2, Key.root(0).fold("emnist", classes).generator())
    return _images(
        "emnist", x[~test, None], label[~test], x[test, None], label[test], [0.1722], [0.3309], n_classes=n_classes
    )


FIRST_LETTERS = 10
_EMNIST_CLASSES = {  # first and last of the 62, and how many are told apart
    "byclass": (0, 62, 62),
    "letters": (10, 62, 26),
    "a_to_j": (10, 62, 26),
    "digits": (0, 10, 10),
    "upper": (10, 36, 26),
    "lower": (36, 62, 26),
}


_ALIKE = (
    "CIJKLMOPSUVWXYZ"  # letters whose lower case is told apart from upper case neither in "Balanced" nor in "Merge"
)


def _emnist_labels(classes: str) -> tuple[NDArray[np.int64], int]:
    """The label of each of the 62 classes, -1 where it is left out, and how many there are."""
    new = np.full(62, -1)
    if classes != "merged":
        first, last, n_classes = _EMNIST_CLASSES[classes]
        new[first:last] = np.arange(last - first) % n_classes
        if classes == "a_to_j":
            new, n_classes = np.where(new < FIRST_LETTERS, new, -1), FIRST_LETTERS
        return new, n_classes
    new[:36] = np.arange(36)
    following = 36
    for i, letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
        if letter in _ALIKE:
            new[36 + i] = new[10 + i]
        else:
            new[36 + i], following = following, following + 1
    return new, following


def _at_most(label: NDArray[Any], most: int, key: Key) -> NDArray[np.int64]:
    """Places of at most so many samples of each class, in their order."""
    order = key.generator().permutation(len(label))
    taken = [order[label[order] == c][:most] for c in np.unique(label)]
    return np.sort(np.concatenate(taken))


def _emnist_source() -> list[NDArray[Any]]:
    url = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
    path = fetch("emnist/gzip.zip", url, "58c8d27c78d21e728a6bc7b3cc06412e", "emnist")
    with zipfile.ZipFile(path) as archive:
        parts = ("emnist-byclass-test-images-idx3-ubyte.gz", "emnist-byclass-test-labels-idx1-ubyte.gz")
        x, y = (parse_idx(archive.read(f"gzip/{part}"), part) for part in parts)
    return [x.transpose(0, 2, 1), y]  # the original is lying on its side


def _images(
    name: str,
    x: NDArray[Any],
    y: NDArray[Any],
    xt: NDArray[Any],
    yt: NDArray[Any],
    mean: list[float],
    std: list[float],
    *,
    scale: float = 1 / 255,
    n_classes: int = 10,
    **rest: Any,
) -> Dataset:
    shape = (-1, 1, 1)
    scaling = Scaling(scale, torch.tensor(mean).view(shape), torch.tensor(std).view(shape))
    bytes_ = [torch.from_numpy(np.ascontiguousarray(a)) for a in (x, xt)]
    return Dataset(name, bytes_[0], _long(y), bytes_[1], _long(yt), n_classes, scaling, "image", **rest)


def _long(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


_MNIST = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
_FASHION = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_QMNIST = {  # the NIST writer of every MNIST digit, in MNIST's order
    "qmnist-train-labels-idx2-int.gz": "0058f8dd561b90ffdd0f734c6a30e5e4",
    "qmnist-test-labels-idx2-int.gz": "5b5b05890a5e13444e108efe57b788aa",
}
_WRITER_COLUMN = 2


def _idx_set(dataset: str, base: str, files: dict[str, str]) -> list[NDArray[Any]]:
    return [read_idx(fetch(f"{dataset}/{name}", base + name, md5, dataset)) for name, md5 in files.items()]


def _mnist_writers() -> tuple[NDArray[Any], NDArray[Any]]:
    base = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
    train, test = _idx_set("mnist", base, _QMNIST)
    return train[:, _WRITER_COLUMN], test[:10_000, _WRITER_COLUMN]


def read_idx(path: Path) -> NDArray[Any]:
    """An IDX file (two zero bytes, type, number of axes, lengths, values; all big-endian), gzipped or not."""
    return parse_idx(path.read_bytes(), str(path))


def parse_idx(raw: bytes, name: str) -> NDArray[Any]:
    """The array in an IDX file's bytes."""
    types: dict[int, np.dtype[Any]] = {
        8: np.dtype(np.uint8),
        9: np.dtype(np.int8),
        11: np.dtype(">i2"),
        12: np.dtype(">i4"),
    }
    try:
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        kind, axes = types[raw[2]], raw[3]
        shape = np.frombuffer(raw, ">u4", axes, 4).astype(int)
        return np.frombuffer(raw, kind, offset=4 + 4 * axes).reshape(shape).astype(kind.newbyteorder("="))
    except (KeyError, IndexError, ValueError, EOFError, OSError) as error:
        raise DataError(f"The file '{name}' is not a whole IDX file; delete it and fetch it again.") from error


def _cifar_coded(path: Path) -> tuple[Bytes, NDArray[Any]]:
    """Planes G, R-G, B-G as differences to the left-hand (first column: upper) pixel, modulo 256."""
    planes, y = read_npz(path, "r", "y")
    q = planes.astype(np.uint8)
    q[..., 0] = np.cumsum(q[..., 0], axis=2, dtype=np.uint8)
    g, r, b = np.cumsum(q, axis=3, dtype=np.uint8)
    return np.stack([r + g, g, b + g], 1), y


def _cifar_binary() -> list[tuple[Bytes, NDArray[Any]]]:
    url = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    path = fetch("cifar10/cifar-10-binary.tar.gz", url, "c32a1d4ab5d03f1284b67883e8d87530", "cifar10")
    batches = []
    with tarfile.open(path) as archive:
        for part in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            member = archive.extractfile(f"cifar-10-batches-bin/{part}.bin")
            assert member is not None
            rows = np.frombuffer(member.read(), np.uint8).reshape(-1, 3073)
            batches.append((rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]))
    return batches
