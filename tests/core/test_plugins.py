"""What others bring: modules of a room that nobody mentions, and packages by their entry points."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import motley.parts
from motley.core.errors import UnknownNameError
from motley.core.part import PARTS
from motley.core.plugins import load_plugins
from motley.core.registry import Registry
from motley.extend import PROBLEMS
from motley.methods import METHODS, make_method

PART = '''
from motley.extend import Part, part

@part("step")
def {name}() -> Part:
    """Does nothing at all, and says so in a sentence."""
    return Part(step=lambda s, rnd, old, new, updates: (new, s))
'''

METHOD = '''
from motley.extend import METHODS, PROBLEMS, Method, Problem, compose
from motley.methods import make_method

BASE = make_method("fedavg")

@METHODS.add()
def borrowed() -> Method:
    """Federated averaging by another name."""
    return compose(BASE, name="borrowed")

@PROBLEMS.add()
def nothing_to_learn() -> Problem:
    """Its loss is always 0."""
    return Problem(loss=lambda outputs, y: 0.0 * outputs.sum(-1), name="nothing to learn")
'''


def told(code: str) -> str:
    """What a fresh process prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("room", ["client", "server"])
def test_a_part_in_a_new_module_needs_no_mention_elsewhere(room: str, tmp_path: Path) -> None:
    (tmp_path / "new_file.py").write_text(PART.format(name="brand_new"))
    add = f"import motley.{room} as room; room.__path__.append({str(tmp_path)!r}); "
    assert (
        told(add + "from motley.methods import make_method; print(make_method('brand_new').parts)") == "(brand_new(),)"
    )
    assert told(add + "import motley; print(motley.parts.brand_new())") == "brand_new()"


def install(folder: Path, name: str, module: str, code: str) -> None:
    """Puts a package with one entry point into a folder, as an installer would."""
    (folder / f"{module}.py").write_text(code)
    facts = folder / f"{name}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[motley]\n{name} = {module}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where packages are installed for one test."""
    registries: tuple[Registry[Any], ...] = (PARTS, METHODS, PROBLEMS)
    before = [dict(registry.entries) for registry in registries]
    monkeypatch.syspath_prepend(str(tmp_path))
    load_plugins.cache_clear()
    yield tmp_path
    for registry, entries in zip(registries, before, strict=True):
        registry.entries.clear()
        registry.entries.update(entries)
    load_plugins.cache_clear()


def test_a_plugin_is_loaded_when_a_name_is_asked_for_that_nobody_knows(folder: Path) -> None:
    install(folder, "borrowers", "borrowers_module", METHOD)
    make_method("fedavg")
    assert "borrowers_module" not in sys.modules
    assert make_method("borrowed").name == "borrowed"
    assert "nothing_to_learn" in PROBLEMS
    assert load_plugins() == ("borrowers",)


def test_a_plugin_is_listed_and_its_parts_are_found_by_name(folder: Path) -> None:
    install(folder, "listed", "listed_module", PART.format(name="from_outside"))
    assert "from_outside" in [entry.name for entry in PARTS]
    assert repr(motley.parts.from_outside()) == "from_outside()"
    assert make_method("fedprox+from_outside").parts[-1].name == "from_outside"


def test_a_plugin_that_fails_is_told_of_and_leaves_the_others_be(folder: Path) -> None:
    install(folder, "broken", "broken_module", "raise RuntimeError('half done')")
    install(folder, "whole", "whole_module", PART.format(name="still_there"))
    with pytest.warns(UserWarning, match=r"The plugin 'broken' \(broken_module\) cannot be loaded: half done"):
        assert make_method("still_there").parts[0].name == "still_there"


def test_a_plugin_cannot_take_a_name_that_is_taken(folder: Path) -> None:
    install(folder, "greedy", "greedy_module", PART.format(name="proximal"))
    before = PARTS["proximal"]
    with pytest.warns(
        UserWarning, match=r"'greedy' .* There is a part named 'proximal' already \(in motley.client.obj"
    ):
        load_plugins()
    assert PARTS["proximal"] is before


@pytest.mark.usefixtures("folder")
def test_without_plugins_a_name_that_nobody_knows_is_told() -> None:
    with pytest.raises(UnknownNameError, match="There is no method or part named 'borrowed'"):
        make_method("borrowed")
