"""Names with arguments, registries, errors, schedules and trees."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import pytest
import torch

from motley.core.errors import InputError, MotleyError, UnknownNameError
from motley.core.registry import Call, Registry, parse
from motley.core.schedule import Exponential, Linear, value_at
from motley.core.trees import from_named, to_named


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("fedavg", [("fedavg", {})]),
        (" a + b ", [("a", {}), ("b", {})]),
        ("a(x=1)+b(y='z', w=[1, 2])+c()", [("a", {"x": 1}), ("b", {"y": "z", "w": [1, 2]}), ("c", {})]),
        ("a(x=true, y=False, z=none, i=inf, s=word)",
         [("a", {"x": True, "y": False, "z": None, "i": float("inf"), "s": "word"})]),
        ("a(x=-1e-3, y=(1, 2))", [("a", {"x": -1e-3, "y": (1, 2)})]),
    ],
)  # fmt: skip
def test_the_short_form(text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert parse(text) == [Call(*call) for call in calls]


@pytest.mark.parametrize("text", ["", "a(", "a(1)", "a-b", "a(**x)", "a(x=f(1))", "a.b", "1", "a(x=1+y)"])
def test_what_cannot_be_read_is_told(text: str) -> None:
    with pytest.raises(InputError, match="Cannot read the method"):
        parse(text, "method")


def test_calls_print_as_they_are_read() -> None:
    for text in ("a", "a(x=1, y='b')"):
        assert str(parse(text)[0]) == text


def animals() -> Registry[str]:
    registry: Registry[str] = Registry("animal")

    @registry.add()
    def cat(colour: str = "black") -> str:
        """Purrs.

        Not in the summary.
        """
        return f"{colour} cat"

    @registry.add("dog", hidden=("home",), wild=False)
    def make_dog(home: str, size: int) -> str:
        """Barks
        loudly."""
        return f"{size}"

    return registry


def test_registry() -> None:
    registry = animals()
    assert [(entry.name, entry.summary) for entry in registry] == [("cat", "Purrs."), ("dog", "Barks loudly.")]
    assert registry.make("cat", colour="red") == "red cat"
    assert list(registry["dog"].parameters) == ["size"]
    assert registry["dog"].meta["wild"] is False
    assert "cat" in registry
    assert "cow" not in registry


def test_registry_errors_are_sentences() -> None:
    registry = animals()
    with pytest.raises(UnknownNameError, match=r"There is no animal named 'cta'; did you mean 'cat'\?") as caught:
        registry.make("cta")
    assert caught.value.suggestion == "cat"
    with pytest.raises(UnknownNameError, match="known are: cat, dog"):
        registry["zebra"]
    with pytest.raises(InputError, match=r"'cat' cannot be made: .*'color'.*; its arguments are: colour"):
        registry.make("cat", color="red")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.suggestion == "cat"
    assert isinstance(copy, MotleyError)


def test_schedules() -> None:
    ramp = Linear(0.1, 0.2, high=0.6)
    assert [ramp(t) for t in (1, 2, 3)] == pytest.approx([0.3, 0.5, 0.6])
    assert Linear(1.0, -0.5, low=0.2)(4) == 0.2
    assert [Exponential(1.0, 0.5, low=0.2)(t) for t in (1, 2, 3)] == pytest.approx([0.5, 0.25, 0.2])
    assert value_at(3, 9) == 3.0
    assert value_at(ramp, 1) == pytest.approx(0.3)
    assert value_at(lambda t: t * t, 5) == 25.0
    assert pickle.loads(pickle.dumps(ramp)) == ramp


TREES: list[Any] = [
    torch.ones(3),
    {},
    None,
    (),
    {"a": torch.zeros(()), "b": {"c": torch.arange(3), "d": None}},
    (torch.ones(1), {"x": (torch.ones(2), None, (), {})}),
    {"p": (torch.tensor(True),)},
]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return a is b


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_trees_come_back_as_they_were(tree: Any) -> None:
    assert same(from_named(to_named(tree)), tree)
    if not isinstance(tree, torch.Tensor):
        named = to_named(tree, "below")
        assert all(name.startswith("below/") for name in named)
        assert same(from_named({name.removeprefix("below/"): value for name, value in named.items()}), tree)


def test_ten_and_more_in_a_tuple_keep_their_order() -> None:
    tree = tuple(torch.tensor(i) for i in range(12))
    assert [int(leaf) for leaf in from_named(to_named(tree))] == list(range(12))


class Pair(NamedTuple):
    a: torch.Tensor


@pytest.mark.parametrize(
    "tree", [{"a": 1.0}, {"a": [torch.ones(1)]}, {3: torch.ones(1)}, {"a/b": torch.ones(1)}, {"#0": torch.ones(1)},
             {"": torch.ones(1)}, Pair(torch.ones(1))]
)  # fmt: skip
def test_what_would_not_come_back_is_refused(tree: Any) -> None:
    with pytest.raises(TypeError, match="The state of a part"):
        to_named(tree, "state")
