"""Trees as bytes: one format for checkpoints, worker processes and networks. Never pickle.

A tree is made of dicts, lists, tuples, numbers, texts, None and tensors. Its bytes are a safetensors file: tensors lie
in it by their path, its metadata hold the version of this format and the rest of the tree as JSON. Equal trees have
equal bytes, in every process.

What several places of a tree share is a `Content`: it is written once, under its digest, or left out where the reader
has it already.

    >>> loads(dumps({"round": 3, "weights": torch.ones(2)}))
    {'round': 3, 'weights': tensor([1., 1.])}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from motley.core.errors import StateError
from motley.core.files import write_bytes
from motley.core.types import Tree

VERSION = 2
_NAME = "motley"
_TENSOR, _PLACED, _TUPLE, _CONTENT, _DICT = "$", "$@", "()", "#", "{}"
_RESERVED = {_TENSOR, _PLACED, _TUPLE, _CONTENT, _DICT}
_UNREADABLE = (
    SafetensorError, KeyError, AttributeError, TypeError, UnicodeDecodeError, RecursionError, json.JSONDecodeError
)  # fmt: skip


class Content:
    """A tree that is shared, named by the digest of its bytes, which are made when first asked for."""

    __slots__ = ("_ref", "_tree")

    def __init__(self, tree: Tree, ref: str | None = None) -> None:
        self._tree, self._ref = tree, ref

    @property
    def tree(self) -> Tree:
        return self._tree

    @property
    def ref(self) -> str:
        """sha256 of what `data` gives."""
        if self._ref is None:
            self._ref = hashlib.sha256(self.data()).hexdigest()
        return self._ref

    @property
    def known(self) -> str | None:
        """``ref`` where it has been made already."""
        return self._ref

    def name(self, ref: str) -> None:
        """Tells the digest of its bytes to a content that somebody else has written."""
        self._ref = ref

    def data(self) -> bytes:
        """The content as bytes; its receiver can check them against ``ref`` before looking inside."""
        return dumps(self._tree)

    def same(self, other: Content) -> bool:
        """Whether both are the same thing; digests are compared where both are known, and never made for this."""
        return self is other or (self._ref is not None and self._ref == other._ref)


class _Writer:
    """Takes a tree apart."""

    def __init__(self, without: Collection[str]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.contents: dict[str, Any] = {}
        self.without = without

    def plain(self, tree: Tree, path: str) -> Any:
        if isinstance(tree, Tensor):
            self.tensors[path] = tree
            return {_PLACED if tree.device.type != "cpu" else _TENSOR: path}
        if tree is None or isinstance(tree, bool | int | float | str):
            return tree
        if isinstance(tree, Content):
            return {_CONTENT: self._shared(tree)}
        if isinstance(tree, Mapping):
            return self._table(tree, path)
        if isinstance(tree, list | tuple):
            return self._row(tree, path)
        raise _refused(tree, path)

    def _row(self, tree: list[Tree] | tuple[Tree, ...], path: str) -> Any:
        if hasattr(tree, "_fields"):  # a named tuple would come back as a plain one
            raise _refused(tree, path)
        items = [self.plain(value, f"{path}/{i}") for i, value in enumerate(tree)]
        return items if isinstance(tree, list) else {_TUPLE: items}

    def _table(self, tree: Mapping[Any, Tree], path: str) -> Any:
        for key in tree:
            if not isinstance(key, str):
                raise TypeError(f"The keys of a tree are texts, not {key!r} (at '{path}').")
        items = {key: self.plain(value, f"{path}/{_escaped(key)}") for key, value in tree.items()}
        return {_DICT: items} if _RESERVED & items.keys() else items

    def _shared(self, content: Content) -> str:
        ref = content.ref
        if ref not in self.contents and ref not in self.without:
            self.contents[ref] = None  # known from now on
            self.contents[ref] = self.plain(content.tree, f"{_CONTENT}{ref}")
        return ref


def _refused(tree: Any, path: str) -> TypeError:
    return TypeError(
        f"A tree holds tensors, numbers, texts, dicts, lists and tuples, not {type(tree).__name__} (at '{path}')."
    )


def _escaped(key: str) -> str:
    """A key as it stands in a path, so that no two paths are the same."""
    return key.replace("~", "~0").replace("/", "~1")


def _flat(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors takes them: on the host, contiguous, none in the memory of another."""
    seen: set[int] = set()
    whole: dict[str, Tensor] = {}
    for name, tensor in named.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage().data_ptr()
        whole[name] = plain.clone() if storage in seen else plain
        seen.add(storage)
    return whole


def _parts(tree: Tree, without: Collection[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A tree as safetensors takes it: tensors by path, and everything else as text."""
    writer = _Writer(without)
    inside = {"version": VERSION, "tree": writer.plain(tree, ""), "contents": writer.contents}
    return _flat(writer.tensors), {_NAME: json.dumps(inside)}  # one entry: safetensors writes several in any order


def dumps(tree: Tree, without: Collection[str] = ()) -> bytes:
    """The bytes of a tree; contents whose digests are in ``without`` are named and left out."""
    return safetensors.torch.save(*_parts(tree, without))


def save(path: Path, tree: Tree) -> None:
    """Writes what `dumps` gives to a file, without a second copy of it in memory; nothing is synced."""
    tensors, metadata = _parts(tree, ())
    safetensors.torch.save_file(tensors, path, metadata)


Lookup = Callable[[str], "Content | None"]


class _Reader:
    """Puts a tree together again."""

    def __init__(
        self, inside: Any, tensor: Callable[[str], Tensor], lookup: Lookup | None, device: torch.device | str
    ) -> None:
        self.inside, self.tensor, self.lookup, self.device = inside, tensor, lookup, device
        self.made: dict[str, Content] = {}

    def whole(self, plain: Any) -> Tree:
        if isinstance(plain, list):
            return [self.whole(value) for value in plain]
        if not isinstance(plain, dict):
            return plain
        mark = next(iter(plain)) if len(plain) == 1 else ""
        if mark in _RESERVED:
            return self._marked(mark, plain[mark])
        return {key: self.whole(value) for key, value in plain.items()}

    def entry(self, key: str) -> Tree:
        """One entry of a table."""
        table = self.inside["tree"]
        return self.whole(table.get(_DICT, table)[key])

    def _marked(self, mark: str, value: Any) -> Tree:
        if mark == _TUPLE:
            return tuple(self.whole(one) for one in value)
        if mark == _CONTENT:
            return self._content(value)
        if mark == _DICT:
            return {key: self.whole(one) for key, one in value.items()}
        return own_copy(self.tensor(value), "cpu" if mark == _TENSOR else self.device)

    def _content(self, ref: str) -> Content:
        if ref not in self.made:
            if ref in self.inside["contents"]:
                self.made[ref] = Content(self.whole(self.inside["contents"][ref]), ref)
            else:
                found = self.lookup(ref) if self.lookup is not None else None
                if found is None:
                    raise ValueError(f"the content {ref[:12]} is missing")
                self.made[ref] = found
        return self.made[ref]


def _inside(metadata: Mapping[str, str] | None) -> Any:
    text = (metadata or {}).get(_NAME)
    inside = None if text is None else json.loads(text)
    if not isinstance(inside, dict) or not {"version", "tree", "contents"} <= inside.keys():
        raise ValueError("it is not a tree of Motley's")
    if inside["version"] != VERSION:
        raise ValueError(f"it is of format {inside['version']}, this Motley reads {VERSION}")
    return inside


def loads(data: bytes, lookup: Lookup | None = None, device: torch.device | str = "cpu") -> Tree:
    """The tree of some bytes; ValueError where they are none.

    lookup: finds contents that were left out. device: where tensors go that were not on the host when written.
    """
    try:
        size = int.from_bytes(data[:8], "little")
        inside = _inside(json.loads(data[8 : 8 + size]).get("__metadata__"))
        named = safetensors.torch.load(data)
        return _Reader(inside, named.__getitem__, lookup, device).whole(inside["tree"])
    except _UNREADABLE as error:
        raise ValueError(f"it cannot be read: {error}") from None


def own_copy(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor read from bytes, as one of torch's own making.

    What is read lies anywhere in memory, and matrix products give other bits where their inputs are aligned otherwise.
    """
    return tensor.to(device) if torch.device(device).type != "cpu" else tensor.clone()


def write(path: Path, tree: Tree) -> str:
    """Writes a tree to a file, in one step, and returns the file's sha256."""
    content = dumps(tree)
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()


def open_tree(path: Path, device: torch.device | str = "cpu", only: str | None = None) -> Tree:
    """The tree of a file, or the entry ``only`` of it, without reading the others; ValueError where it is none."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            inside = _inside(file.metadata())
            reader = _Reader(inside, file.get_tensor, None, device)
            return reader.whole(inside["tree"]) if only is None else reader.entry(only)
    except _UNREADABLE as error:
        raise ValueError(f"it cannot be read: {error}") from None


def read(path: Path, device: torch.device | str = "cpu", only: str | None = None) -> Tree:
    """As `open_tree`, of a file of one's own."""
    try:
        return open_tree(path, device, only)
    except (OSError, ValueError) as error:
        raise StateError(f"{path} cannot be read back: {error}.") from None
