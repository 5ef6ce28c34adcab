"""What people already have, as Motley's data: arrays, torch data sets, flwr-datasets, LEAF files, Hugging Face ids.

All give a `Dataset` (to be partitioned) or, where clients are known, `FederatedData`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.core.errors import DataError
from motley.core.keys import Key
from motley.data.dataset import Dataset, Scaling, Tokens
from motley.data.federated import FederatedData, Partition
from motley.data.partitions.helpers import by_owner
from motley.data.split import standardise, stratified

Array = Any  # NumPy array, tensor, or nested lists
TEST_FRACTION = 0.2


def from_arrays(
    x: Array,
    y: Array,
    test: tuple[Array, Array] | float = TEST_FRACTION,
    *,
    name: str = "arrays",
    kind: str | None = None,
    n_classes: int | None = None,
    groups: dict[str, Array] | None = None,
    scale: bool = True,
    seed: int = 0,
    classes: bool = True,
) -> Dataset:
    """A data set from inputs [N, ...] and labels [N]; with ``classes=False`` from inputs and numbers [N] or [N, D].

    ``test`` is another pair of arrays, or the fraction to set aside (stratified, from `seed`). ``kind`` is guessed:
    [N, H, W] and [N, C, H, W] are images, whole numbers [N, T] text when ``kind='text'`` is said, else a table. With
    ``scale``, inputs are standardised with the training samples' statistics. ``groups`` gives natural client ids.
    """
    inputs, labels = as_tensor(x, "inputs"), targets(y, classes)
    if len(inputs) != len(labels):
        raise DataError(f"There are {len(inputs)} inputs but {len(labels)} {'labels' if classes else 'targets'}.")
    kind = kind or ("image" if inputs.dim() >= 3 else "table")
    if kind not in ("image", "table", "text"):
        raise DataError(f"kind must be 'image', 'table' or 'text', not '{kind}'.")
    inputs = _shaped(inputs, kind)
    ids = {g: as_tensor(v, g).reshape(-1).to(torch.int64) for g, v in (groups or {}).items()}
    if isinstance(test, tuple):
        parts = (inputs, labels, _shaped(as_tensor(test[0], "test inputs"), kind), targets(test[1], classes))
        test_ids: dict[str, Tensor] = {}
    else:
        if not 0 <= test < 1:
            raise DataError(f"The fraction of test samples must lie in 0..1, not {test}.")
        chosen = torch.from_numpy(stratified(labels.numpy(), test, Key.root(seed).fold("arrays").generator()))
        parts = (inputs[~chosen], labels[~chosen], inputs[chosen], labels[chosen])
        ids, test_ids = {g: v[~chosen] for g, v in ids.items()}, {g: v[chosen] for g, v in ids.items()}
    known = max((int(p.max()) + 1 for p in (parts[1], parts[3]) if len(p)), default=0) if classes else 0
    scaling = Tokens() if kind == "text" else Scaling()
    words = int(max(parts[0].max(), parts[2].max() if len(parts[2]) else 0)) + 1 if kind == "text" else 0
    made = Dataset(name, *parts, n_classes or known, scaling, kind, ids, test_ids, words)
    return standardise(made) if scale and kind != "text" else made


def targets(y: Array, classes: bool) -> Tensor:
    """Labels as whole numbers from 0 [N], or targets as numbers [N] or [N, D]."""
    found = as_tensor(y, "labels" if classes else "targets")
    if not classes:
        return found.to(torch.float32)
    if found.dim() == 2 and found.shape[1] > 1:
        raise DataError(
            f"Labels have the shape {tuple(found.shape)}; give one whole number per sample "
            "(of one-hot rows: labels.argmax(1))."
        )
    found = found.reshape(-1)
    if found.is_floating_point() and bool((found != found.round()).any()):
        raise DataError(
            f"Labels must be whole numbers from 0, found {float(found[found != found.round()][0]):g}; "
            "where numbers are to be learned, say problem='regression'."
        )
    if len(found) and int(found.min()) < 0:
        raise DataError(f"Labels must be whole numbers from 0, found {int(found.min())}.")
    return found.to(torch.int64)


def from_torch(data: Any, test: Any = TEST_FRACTION, **rest: Any) -> Dataset:
    """A data set from a ``torch.utils.data.Dataset`` whose items are (input, label); ``test`` is another or a fraction.

    Items are read once into memory. Inputs that are already normalised: ``scale=False``.
    """
    x, y = as_pair(data)
    rest.setdefault("name", type(data).__name__.lower())
    return from_arrays(x, y, test if isinstance(test, float) else as_pair(test), **rest)


def from_clients(clients: Sequence[Any], test: Any, *, classes: bool = True, **rest: Any) -> FederatedData:
    """Federated data from one (x, y) pair or torch data set per client, and a test pair or data set."""
    if not len(clients):
        raise DataError("Federated data need at least one client.")
    pairs = [pair if isinstance(pair, tuple) else as_pair(pair) for pair in clients]
    x = torch.cat([as_tensor(p[0], "inputs") for p in pairs])
    y = torch.cat([targets(p[1], classes) for p in pairs])
    dataset = from_arrays(x, y, test if isinstance(test, tuple) else as_pair(test), classes=classes, **rest)
    offsets = np.concatenate([[0], np.cumsum([len(p[1]) for p in pairs])])
    return FederatedData(dataset, Partition(np.arange(len(y)), offsets))


def from_flower(
    source: Any, split: str = "train", *, test: str = "test", x: str = "", y: str = "", **rest: Any
) -> FederatedData:
    """Federated data from a flwr-datasets ``FederatedDataset`` (or a partitioner with its data set assigned).

    ``split`` names the partitioned split and ``test`` the one kept whole (a partitioner alone has none: its test set
    is empty). ``x`` and ``y`` name the columns; by default y is 'label' and x the only other numeric one.
    """
    if hasattr(source, "partitioners"):
        partitioner = source.partitioners.get(split)
        if partitioner is None:
            known = ", ".join(source.partitioners)
            raise DataError(f"The FederatedDataset has no partitioner for '{split}'; it has: {known}.")
        source.load_partition(0, split)  # prepares the data set and hands it to the partitioner
        whole = source.load_split(test)
    else:
        partitioner, whole = source, None
    parts = [partitioner.load_partition(i) for i in range(partitioner.num_partitions)]
    names = _columns(parts[0].column_names, x, y, parts[0][0])
    pairs = [_table(part, *names) for part in parts]
    held_out = _table(whole, *names) if whole is not None else (pairs[0][0][:0], pairs[0][1][:0])
    rest.setdefault("name", "flower")
    return from_clients(pairs, held_out, **rest)


def from_hub(
    identifier: str, *, train: str = "train", test: str = "test", x: str = "", y: str = "", **rest: Any
) -> Dataset:
    """A data set from the Hugging Face hub, for example ``from_hub("ylecun/mnist")``; needs the extra 'hub'."""
    try:
        import datasets
    except ImportError:
        raise DataError("Hugging Face data sets need the extra 'hub': pip install 'motley-fl[hub]'.") from None
    try:
        parts = [datasets.load_dataset(identifier, split=split) for split in (train, test)]
    except Exception as error:  # the library passes on whatever its file systems raise
        raise DataError(
            f"The data set '{identifier}' cannot be read from Hugging Face: {error}".rstrip(".") + "."
        ) from error
    names = _columns(parts[0].column_names, x, y, parts[0][0])
    rest.setdefault("name", identifier.rsplit("/", 1)[-1])
    return from_arrays(*_table(parts[0], *names), _table(parts[1], *names), **rest)


def from_leaf(path: str | Path, **rest: Any) -> FederatedData:
    """Federated data from LEAF JSON: a file, or a directory with files or with ``train`` and ``test`` below it.

    Each file has ``users``, ``num_samples`` and ``user_data`` with ``x`` and ``y`` per user. Inputs are numbers, or
    strings of characters (as in LEAF's Shakespeare), which become tokens of its 80 letters.
    """
    root = Path(path)
    train, test = (root / "train", root / "test") if (root / "train").is_dir() else (root, None)
    users, x, y, owner = _leaf(train)
    tx, ty = ([], []) if test is None else _leaf(test)[1:3]
    text = bool(x) and isinstance(x[0], str)
    held_out = _leaf_arrays(tx, ty, text) if tx else None
    inputs, labels = _leaf_arrays(x, y, text)
    if text:
        rest = {"kind": "text", "n_classes": 80, **rest}
    if held_out is None:
        held_out = (inputs[:0], labels[:0])
    ids = np.asarray(owner)
    dataset = from_arrays(inputs, labels, held_out, **{"name": root.name, "groups": {"user": ids}, **rest})
    return FederatedData(dataset, by_owner(ids, len(users)))


def _leaf(path: Path) -> tuple[list[str], list[Any], list[Any], list[int]]:
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise DataError(f"There is no LEAF JSON file at '{path}'.")
    users: list[str] = []
    x: list[Any] = []
    y: list[Any] = []
    owner: list[int] = []
    for file in files:
        try:
            content = json.loads(file.read_text())
            for user, n in zip(content["users"], content["num_samples"], strict=True):
                part = content["user_data"][user]
                if not len(part["x"]) == len(part["y"]) == n:
                    raise DataError(f"User '{user}' in '{file}' has not the {n} samples that num_samples promises.")
                x.extend(part["x"])
                y.extend(part["y"])
                owner.extend([len(users)] * n)
                users.append(user)
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"'{file}' is not LEAF JSON (users, num_samples, user_data): {error!r}.") from None
    return users, x, y, owner


def _leaf_arrays(x: list[Any], y: list[Any], text: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    from motley.data.sources.text import encode

    if text:
        return np.stack([encode(line) for line in x]), np.concatenate([encode(letter[:1]) for letter in y])
    try:
        return np.asarray(x, np.float32), np.asarray(y).astype(np.int64)
    except (TypeError, ValueError) as error:
        raise DataError(f"LEAF inputs must be numbers or single strings, all of one length ({error}).") from None


def as_tensor(values: Array, what: str) -> Tensor:
    """Anything array-like as a tensor; float64 becomes float32."""
    try:
        found = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError) as error:
        raise DataError(f"The {what} are not an array of numbers ({error}).") from None
    return found.float() if found.dtype in (torch.float64, torch.float16, torch.bool) else found


def _long(values: Array) -> Tensor:
    return as_tensor(values, "labels").reshape(-1).to(torch.int64)


def _shaped(x: Tensor, kind: str) -> Tensor:
    if kind == "image":
        if x.dim() == 3:
            return x[:, None]
        if x.dim() == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
            return x.permute(0, 3, 1, 2).contiguous()  # channels last, as pictures are usually stored
        return x
    return x.flatten(1) if x.dim() > 1 else x[:, None]


def as_pair(data: Any) -> tuple[Array, Array]:
    """All items of a torch data set, or a pair of arrays as it is."""
    if isinstance(data, tuple):
        return data[0], data[1]
    if isinstance(data, torch.utils.data.TensorDataset):
        return data.tensors[0], data.tensors[1]
    x, y = [], []
    for i in range(len(data)):
        item = data[i]
        x.append(np.asarray(item[0]))
        y.append(np.asarray(item[1]))
    if not x:
        raise DataError("The data set has no samples.")
    return np.stack(x), np.asarray(y)


def _columns(names: Iterable[str], x: str, y: str, first: dict[str, Any]) -> tuple[str, str]:
    known = list(names)
    label = y or next((n for n in ("label", "labels", "fine_label", "target", "character", "y") if n in known), "")
    usable = [n for n in known if n != label and not isinstance(first[n], str | bytes)]
    common = next((n for n in ("image", "img", "x", "features") if n in usable), "")
    inputs = x or common or (usable[0] if len(usable) == 1 else "")
    if label not in known or inputs not in known:
        raise DataError(f"Name the columns of inputs and labels, x=... and y=...; there are: {', '.join(known)}.")
    return inputs, label


def _table(data: Any, x: str, y: str) -> tuple[NDArray[Any], NDArray[Any]]:
    return np.stack([np.asarray(value) for value in data[x]]), np.asarray(data[y])
