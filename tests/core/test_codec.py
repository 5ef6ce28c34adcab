"""Trees as bytes: they come back as they were, what is shared is written once, and bytes that are none are refused."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from motley.core import codec
from motley.core.codec import Content, dumps, loads
from motley.core.errors import StateError
from motley.core.keys import Key
from motley.core.tasks import Assignment, Update, Weights
from motley.nets import build
from tests import tiny

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    kind = draw(st.sampled_from(TYPES))
    count = int(torch.tensor(shape).prod()) if shape else 1
    numbers = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    return torch.tensor(numbers).to(kind).reshape(shape)


KEYS = st.text(max_size=4) | st.sampled_from(["$", "$@", "()", "#", "{}", "a/b", "/", "~1", "0", "__metadata__"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | tensors()
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | inner.map(Content)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return bool(a.dtype == b.dtype and torch.equal(a, b))
    if isinstance(a, Content):
        return a.ref == b.ref and same(a.tree, b.tree)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@given(TREES)
def test_trees_come_back_as_they_were(tree: Any) -> None:
    data = dumps(tree)
    assert same(loads(data), tree)
    assert dumps(loads(data)) == data


@given(st.dictionaries(KEYS, TREES, max_size=3))
def test_files_are_the_same_bytes(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    path = tmp_path_factory.mktemp("codec") / "tree"
    codec.write(path, tree)
    assert path.read_bytes() == dumps(tree)
    assert same(codec.read(path), tree)
    for key, value in tree.items():
        assert same(codec.read(path, only=key), value)


@pytest.mark.parametrize(
    "tree",
    [
        {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}},
        {"a/0": torch.zeros(1), "a": [torch.ones(1)]},
        {"a~1b": torch.zeros(1), "a/b": torch.ones(1)},
    ],
    ids=str,
)
def test_keys_that_look_like_paths_are_told_apart(tree: Any) -> None:
    assert same(loads(dumps(tree)), tree)


def test_views_of_one_tensor_come_back_as_tensors_of_their_own() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    back = loads(dumps({"whole": whole, "row": whole[1], "turned": whole.T, "again": whole}))
    assert torch.equal(back["row"], whole[1])
    assert torch.equal(back["turned"], whole.T)
    back["whole"].zero_()
    assert torch.equal(back["again"], whole)
    assert torch.equal(back["row"], whole[1])


def test_a_tensor_that_is_part_of_a_graph_goes_without_it() -> None:
    assert not loads(dumps(torch.ones(2, requires_grad=True))).requires_grad


class Pair(NamedTuple):
    a: Tensor


NOT_TREES = {
    "a number as a key": {3: torch.ones(1)},
    "a named tuple": Pair(torch.ones(1)),
    "a set": {"a": {1.0}},
    "an object": object(),
    "a function": {"a": [len]},
    "bytes": b"bytes",
}


@pytest.mark.parametrize("tree", NOT_TREES.values(), ids=NOT_TREES)
def test_what_would_not_come_back_is_refused(tree: Any) -> None:
    with pytest.raises(TypeError, match=r"(A tree holds|The keys of a tree are) .*\(at '"):
        dumps(tree)


# ------------------------------------------------------------------------------------- what is shared


def test_what_is_shared_is_written_once() -> None:
    model = torch.randn(1000)
    alone = len(dumps({"a": Content(model)}))
    twice = dumps({"a": Content(model), "b": [Content(model.clone()), Content({"inner": Content(model)})]})
    assert len(twice) < alone + 1000
    back = loads(twice)
    assert back["a"] is back["b"][0] is back["b"][1].tree["inner"]
    assert torch.equal(back["a"].tree, model)


def test_a_digest_names_the_content_and_nothing_else() -> None:
    a, b, c = Content(torch.ones(3)), Content(torch.ones(3)), Content(torch.zeros(3))
    assert a.known is None
    assert a.same(a)
    assert not a.same(b), "digests are not made for this"
    assert a.ref == b.ref != c.ref
    assert a.same(b)
    assert a.known == a.ref


def test_digests_are_the_same_in_every_process() -> None:
    tree = {"b": torch.arange(3), "a": {"x": 1, "y": torch.ones(2, dtype=torch.bool)}, "c": [0.5, None, "text"]}
    code = (
        "import torch; from motley.core.codec import Content; "
        "print(Content({'b': torch.arange(3), 'a': {'x': 1, 'y': torch.ones(2, dtype=torch.bool)}, "
        "'c': [0.5, None, 'text']}).ref)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert told == Content(tree).ref


def test_what_the_reader_has_already_is_left_out() -> None:
    model = Content(torch.randn(1000))
    tree = {"start": model, "epochs": 2.0}
    short = dumps(tree, without=[model.ref])
    assert len(short) < 500
    assert loads(short, lookup={model.ref: model}.get)["start"] is model
    for lookup in (None, {"other": model}.get):
        with pytest.raises(ValueError, match=f"the content {model.ref[:12]} is missing"):
            loads(short, lookup=lookup)


def test_tasks_and_updates_come_back() -> None:
    net = build("mlp(hidden=[2])", (3,), 2, 0, Key.root(0))
    a = tiny.assignment(3, net=net, epochs=1.5, down={"part": {"c": torch.ones(2)}}, dials={"part": {"mu": 0.5}})
    back = Assignment.from_tree(loads(dumps(a.to_tree())))
    assert (back.id, back.client, back.epochs, back.dials, back.key) == (a.id, 3, 1.5, a.dials, a.key)
    assert isinstance(back.start, Weights)
    assert torch.equal(back.start.value, a.start.value)
    assert same(back.down, a.down)
    one = torch.ones(())
    update = Update("1.3", 3, 1, a.start, torch.ones(net.size), torch.ones(2), {"p": one}, 8.0, one, 4, 1.5, 0.1, 2.0)
    again = Update.from_tree(loads(dumps(update.to_tree())), a.start)
    assert same(tuple(again), tuple(update))


# ------------------------------------------------------------------------------------- bytes that are none

GOOD = dumps({"round": 3, "weights": torch.arange(4.0), "shared": (Content(torch.ones(2)), [1, None])})


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "VERSION", codec.VERSION + 1)
    new = dumps({"a": 1})
    (tmp_path / "tree").write_bytes(new)
    monkeypatch.undo()
    wanted = f"it is of format {codec.VERSION + 1}, this Motley reads {codec.VERSION}"
    with pytest.raises(ValueError, match=wanted):
        loads(new)
    with pytest.raises(StateError, match=f"cannot be read back: {wanted}"):
        codec.read(tmp_path / "tree")


def test_a_file_of_somebody_elses_is_refused(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / "model")
    with pytest.raises(StateError, match="it is not a tree of Motley's"):
        codec.read(tmp_path / "model")
    with pytest.raises(StateError, match="cannot be read back"):
        codec.read(tmp_path / "nothing")


def read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        loads(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    read_or_refused(data)


@given(st.integers(0, len(GOOD) - 1))
def test_half_a_message_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="it cannot be read"):
        loads(GOOD[:length])


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=5))
def test_damaged_bytes_are_read_or_refused(damage: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for place, value in damage:
        data[place] = value
    read_or_refused(bytes(data))


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=8,
)


@given(JSON, JSON)
def test_a_message_whose_inside_is_made_up_is_read_or_refused(tree: Any, contents: Any) -> None:
    inside = json.dumps({"version": codec.VERSION, "tree": tree, "contents": contents})
    read_or_refused(safetensors.torch.save({"": torch.ones(1)}, {"motley": inside}))


def test_a_content_that_holds_itself_is_refused() -> None:
    inside = {"version": codec.VERSION, "tree": {"#": "a"}, "contents": {"a": {"#": "a"}}}
    with pytest.raises(ValueError, match="cannot be read"):
        loads(safetensors.torch.save({"": torch.ones(1)}, {"motley": json.dumps(inside)}))


class Trap:
    """Would run a command where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('unpickled')",)


def test_nothing_is_ever_unpickled() -> None:
    with pytest.raises(ValueError, match="it cannot be read"):
        loads(pickle.dumps(Trap()))
    with pytest.raises(TypeError, match="not Trap"):
        dumps({"a": Trap()})
