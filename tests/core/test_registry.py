"""Names with arguments, registries, errors and schedules."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from motley.core.errors import InputError, MotleyError, UnknownNameError
from motley.core.part import Method, Part, compose
from motley.core.registry import Call, Registry, parse
from motley.core.schedule import Exponential, Linear, value_at
from motley.extend import (
    AUGMENTATIONS,
    DATASETS,
    DIAGNOSTICS,
    EXECUTORS,
    FLEETS,
    METHODS,
    MODELS,
    OPTIMIZERS,
    PARTITIONS,
    PARTS,
    PHASES,
    PROBLEMS,
    PROTOCOLS,
    PUBLIC,
)
from motley.methods import make_method


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


def test_nothing_is_overwritten_silently() -> None:
    registry = animals()
    before = registry["cat"]
    for name in ("cat", "dog"):
        with pytest.raises(
            InputError, match=rf"a animal named '{name}' already \(in tests.core.test_registry\); choose"
        ):
            registry.add(name)(lambda: "another")
    assert registry["cat"] is before
    registry.add("cow")(lambda: "moo")
    assert registry.make("cow") == "moo"


@pytest.mark.parametrize(
    "registry",
    [AUGMENTATIONS, DATASETS, DIAGNOSTICS, EXECUTORS, FLEETS, METHODS, MODELS, OPTIMIZERS, PARTITIONS, PARTS, PHASES,
     PROBLEMS, PROTOCOLS, PUBLIC],
    ids=lambda registry: registry.kind,
)  # fmt: skip
def test_no_registry_of_motley_is_overwritten(registry: Registry[Any]) -> None:
    for name, entry in dict(registry.entries).items():
        with pytest.raises(InputError, match=f"named '{name}' already"):
            registry.add(name)(lambda: None)
        assert registry[name] is entry


def test_a_cell_that_is_run_again_registers_again() -> None:
    registry: Registry[str] = Registry("animal")
    for sound in ("moo", "muh"):

        @registry.add()
        def cow(sound: str = sound) -> str:
            """Says something."""
            return sound

    assert registry.make("cow") == "muh"


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


def test_a_part_cannot_hide_behind_a_method() -> None:
    """Both stand in the short forms of methods, where the method would be found first."""

    def scaffold() -> Part:
        return Part()

    def proximal() -> Method:
        return compose(Part(name="mine"))

    with pytest.raises(InputError, match="There is a method named 'scaffold' already"):
        PARTS.add()(scaffold)
    with pytest.raises(InputError, match="There is a part named 'proximal' already"):
        METHODS.add()(proximal)
    assert make_method("scaffold").parts
