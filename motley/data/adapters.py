"""What people already have, as Motley's data: arrays, torch data sets, flwr-datasets, LEAF files, Hugging Face ids.

All give a `Dataset` (to be partitioned) or, where clients are known, `FederatedData`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from motley.core.errors import DataError
from motley.core.keys import Key
from motley.data.checks import check_alike, check_finite
from motley.data.dataset import Dataset, Scaling, Tokens
from motley.data.federated import FederatedData, Partition
from motley.data.partitions.helpers import by_owner
from motley.data.reading import items
from motley.data.rereading import Changing, Source, arrange, looked_at, seeded
from motley.data.scaling import standardise
from motley.data.split import stratified

Array = Any  # NumPy array, tensor, or nested lists
TEST_FRACTION = 0.2
MOST_KINDS, KINDS_SHARE = 20, 0.1  # float labels with more values than both of these are taken for measurements
ITEM = " item"  # a group of its own for each item: no name that a user gives


def from_arrays(
    x: Array,
    y: Array,
    test: tuple[Array, Array] | float = TEST_FRACTION,
    *,
    name: str = "arrays",
    kind: str | None = None,
    n_classes: int | None = None,
    groups: dict[str, Array] | None = None,
    scale: bool = False,
    seed: int = 0,
    classes: bool = True,
) -> Dataset:
    """A data set from inputs [N, ...] and labels [N]; with ``classes=False`` from inputs and numbers [N] or [N, D].

    ``test`` is another pair of arrays, or the fraction to set aside (stratified, from `seed`). ``kind`` is guessed:
    [N, H, W] and [N, C, H, W] are images, whole numbers [N, T] text when ``kind='text'`` is said, else a table. Inputs
    stay as they are; with ``scale`` they are standardised with the statistics of all training samples, which no server
    of a federation has (other ways: `motley.data.scaling`). ``groups`` gives natural client ids.
    """
    inputs, labels = as_tensor(x, "inputs"), targets(y, classes)
    if classes:
        _refuse_measurements(as_tensor(y, "labels"))
    if len(inputs) != len(labels):
        raise DataError(f"There are {len(inputs)} inputs but {len(labels)} {'labels' if classes else 'targets'}.")
    check_finite(inputs, "inputs")
    kind = _kind(kind, inputs)
    arranged = _arranged(inputs, kind)
    train = Samples(_shaped(inputs, kind), labels, _owners(groups or {}))
    if isinstance(test, tuple):
        held = _held_out(*test, kind, classes)
    else:
        train, held = _set_aside(train, test, seed)
    known = n_classes or (_count(train.y, held.y) if classes else 0)
    samples, owners = (train.x, train.y, held.x, held.y), (train.groups, held.groups)
    if kind == "text":
        return Dataset(name, *samples, known, Tokens(), kind, *owners, _count(train.x, held.x), arranged=arranged)
    made = Dataset(name, *samples, known, Scaling(), kind, *owners, arranged=arranged)
    return standardise(made) if scale else made


def _kind(name: str | None, inputs: Tensor) -> str:
    name = name or ("image" if inputs.dim() >= 3 else "table")
    if name not in ("image", "table", "text"):
        raise DataError(f"kind must be 'image', 'table' or 'text', not '{name}'.")
    return name


def _owners(groups: dict[str, Array]) -> dict[str, Tensor]:
    return {name: as_tensor(ids, name).reshape(-1).to(torch.int64) for name, ids in groups.items()}


class Samples(NamedTuple):
    """Inputs, labels, and whose they are, by the names of groupings."""

    x: Tensor
    y: Tensor
    groups: dict[str, Tensor]

    def where(self, chosen: Tensor) -> Samples:
        return Samples(self.x[chosen], self.y[chosen], {name: ids[chosen] for name, ids in self.groups.items()})


def _held_out(x: Array, y: Array, kind: str, classes: bool) -> Samples:
    """Test samples as they were given."""
    inputs, labels = as_tensor(x, "test inputs"), targets(y, classes)
    check_finite(inputs, "test inputs")
    return Samples(_shaped(inputs, kind), labels, {})


def _set_aside(samples: Samples, fraction: float, seed: int) -> tuple[Samples, Samples]:
    """Training and test samples, stratified by label."""
    if isinstance(fraction, str) or not 0 <= fraction < 1:
        raise DataError(f"The fraction of test samples must be at least 0 and below 1, not {fraction!r}.")
    rng = Key.root(seed).fold("arrays").generator()
    chosen = torch.from_numpy(stratified(samples.y.numpy(), fraction, rng))
    return samples.where(~chosen), samples.where(chosen)


def _count(*numbers: Tensor) -> int:
    """How many kinds there are, counted from 0."""
    return max((int(some.max()) + 1 for some in numbers if len(some)), default=0)


def targets(y: Array, classes: bool) -> Tensor:
    """Labels as whole numbers from 0 [N], or targets as numbers [N] or [N, D]."""
    found = as_tensor(y, "labels" if classes else "targets")
    check_finite(found, "labels" if classes else "targets")
    return _labels(found) if classes else found.to(torch.float32)


def _labels(found: Tensor) -> Tensor:
    """One whole number per sample [N], from 0."""
    if found.dim() > 1 and found.numel() > len(found):
        _refuse_shape(found)
    found = found.reshape(-1)
    if found.is_floating_point() and bool((found != found.round()).any()):
        raise DataError(
            f"Labels must be whole numbers from 0, found {float(found[found != found.round()][0]):g}; "
            "where numbers are to be learned, say problem='regression'."
        )
    if len(found) and int(found.min()) < 0:
        raise DataError(f"Labels must be whole numbers from 0, found {int(found.min())}.")
    return found.to(torch.int64)


def _refuse_measurements(found: Tensor) -> None:
    """Floats with a great many values are hardly classes, though all may be whole; 0, 1, ... without gaps may be."""
    kinds = len(found.unique()) if found.is_floating_point() else 0
    dense = kinds > 0 and float(found.min()) == 0 and float(found.max()) == kinds - 1
    if not dense and kinds > MOST_KINDS and kinds > len(found) * KINDS_SHARE:
        raise DataError(
            f"The labels are floats with {kinds} different values in {len(found)} samples, which look like numbers to "
            "be learned: say problem='regression'; if they are classes, give them as whole numbers, y.astype('int64')."
        )


def _refuse_shape(found: Tensor) -> NoReturn:
    one_hot = found.dim() == 2 and bool(((found == 0) | (found == 1)).all()) and bool((found.sum(1) == 1).all())
    told = "are one-hot" if one_hot else f"have the shape {tuple(found.shape)}"
    mend = "; give labels.argmax(1)" if one_hot else ", or say problem='regression' where these are to be learned"
    raise DataError(f"Labels {told}, but one whole number per sample is needed{mend}.")


def from_torch(data: Any, test: Any = TEST_FRACTION, *, reread: bool = True, **rest: Any) -> Dataset:
    """A data set from a ``torch.utils.data.Dataset`` whose items are (input, label); ``test`` is another or a fraction.

    Items are read once into memory. Those that change from one reading to the next (random crops and the like) are read
    anew in every epoch, unless ``reread=False`` holds them as they were first read; test samples are always held.
    """
    key = Key.root(rest.get("seed", 0)).fold("items")
    with seeded(int(key.tensor())):
        x, y = items(data)
        judged = test if isinstance(test, float) else items(test)
    rest.setdefault("name", type(data).__name__.lower())
    groups = {**(rest.pop("groups", None) or {}), ITEM: np.arange(len(x))}
    made = from_arrays(x, y, judged, groups=groups, **rest)
    index = made.groups[ITEM].numpy()
    made = replace(made, groups=_without(made.groups), test_groups=_without(made.test_groups))
    return _with_source(made, (data,), np.zeros(len(index), np.int64), index, key) if reread else made


def _without(groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: ids for name, ids in groups.items() if name != ITEM}


def _with_source(
    dataset: Dataset, parts: Sequence[Any], part: NDArray[np.int64], index: NDArray[np.int64], key: Key
) -> Dataset:
    """The data set with what its training samples are read from, where they change."""
    found: list[Any] = []
    for one in parts:
        plain = isinstance(one, tuple) or type(one) is TensorDataset
        seen = Changing(False, True) if plain else looked_at(one, len(one), key)
        if not seen.repeats:
            warnings.warn(
                f"Items of {type(one).__name__} change with every reading, whatever the seeds of random, numpy.random "
                "and torch are, so a run cannot be repeated exactly; draw from one of these generators.",
                stacklevel=4,
            )
        found.append(one if seen.changes else None)
    if all(one is None for one in found):
        return dataset
    return replace(dataset, source=Source(tuple(found), part, index, dataset.x))


def from_clients(clients: Sequence[Any], test: Any, *, classes: bool = True, **rest: Any) -> FederatedData:
    """Federated data from one (x, y) pair or torch data set per client, and a test pair or data set."""
    if not len(clients):
        raise DataError("Federated data need at least one client.")
    key = Key.root(rest.get("seed", 0)).fold("items")
    with seeded(int(key.tensor())):
        pairs = [items(pair) for pair in clients]
    inputs = [as_tensor(p[0], "inputs") for p in pairs]
    labels = [targets(p[1], classes) for p in pairs]
    _check_clients(inputs, labels)
    if classes:
        _refuse_measurements(torch.cat([as_tensor(p[1], "labels").reshape(-1) for p in pairs]))
    x, y = torch.cat(inputs), torch.cat(labels)
    dataset = from_arrays(x, y, test if isinstance(test, tuple) else items(test), classes=classes, **rest)
    offsets = np.concatenate([[0], np.cumsum([len(p[1]) for p in pairs])])
    part = np.repeat(np.arange(len(pairs)), np.diff(offsets))
    dataset = _with_source(dataset, clients, part, np.arange(len(y)) - offsets[part], key)
    return FederatedData(dataset, Partition(np.arange(len(y)), offsets))


def _check_clients(inputs: Sequence[Tensor], labels: Sequence[Tensor]) -> None:
    check_alike([tuple(x.shape[1:]) for x in inputs], "inputs")
    check_alike([tuple(y.shape[1:]) for y in labels], "targets")
    for client, (own, told) in enumerate(zip(inputs, labels, strict=True)):
        check_finite(own, "inputs", f" of client {client}")
        if len(own) != len(told):
            raise DataError(f"Client {client} has {len(own)} inputs but {len(told)} labels.")


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
        array = values.detach() if isinstance(values, Tensor) else np.asarray(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"The {what} are not an array of numbers ({error}).") from None
    kind = array.dtype.kind if isinstance(array, np.ndarray) else "c" if array.is_complex() else "f"
    if kind not in "biuf":
        hint = "; numpy.unique(labels, return_inverse=True)[1] numbers them" if what == "labels" else ""
        hint = "; give a sparse matrix as x.toarray()" if hasattr(values, "toarray") else hint
        raise DataError(f"The {what} are not an array of numbers, but of type {array.dtype}{hint}.")
    found = torch.as_tensor(array)
    return found.float() if found.dtype in (torch.float64, torch.float16, torch.bool) else found


def _arranged(x: Tensor, kind: str) -> str:
    """What is done to the shape of inputs, in a word."""
    if kind != "image":
        return "" if x.dim() == 2 else "flat"
    if x.dim() == 3:
        return "channel"
    last = x.dim() == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3)
    return "last" if last else ""  # channels last, as pictures are usually stored


def _shaped(x: Tensor, kind: str) -> Tensor:
    return arrange(x, _arranged(x, kind))


_LABELS = ("label", "labels", "fine_label", "target", "character", "y")
_INPUTS = ("image", "img", "x", "features")


def _columns(names: Iterable[str], x: str, y: str, first: dict[str, Any]) -> tuple[str, str]:
    """The columns of inputs and labels: as told, or by their usual names, or the only other one of numbers."""
    known = list(names)
    label = y or _usual(_LABELS, known)
    usable = [name for name in known if name != label and not isinstance(first[name], str | bytes)]
    inputs = x or _usual(_INPUTS, usable) or (usable[0] if len(usable) == 1 else "")
    if label not in known or inputs not in known:
        raise DataError(f"Name the columns of inputs and labels, x=... and y=...; there are: {', '.join(known)}.")
    return inputs, label


def _usual(usual: Sequence[str], known: Sequence[str]) -> str:
    """The first of some names that is there."""
    return next((name for name in usual if name in known), "")


def _table(data: Any, x: str, y: str) -> tuple[NDArray[Any], NDArray[Any]]:
    return np.stack([np.asarray(value) for value in data[x]]), np.asarray(data[y])
