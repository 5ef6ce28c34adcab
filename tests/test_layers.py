"""The layer rule: a package imports only from those to its left."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import motley

ROOT = Path(motley.__file__).parent
LAYERS = [
    {"core"},
    {"data", "fleet", "nets"},
    {"client", "server"},
    {"protocol"},
    {"methods"},
    {"parts"},
    {"engine"},
    {"runtime"},
    {"extend"},
    {"report", "deploy"},
    {"reproduce", "bench"},
    {"commands", "__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
# What some packages of one layer may take from a neighbour in it; everything else in a layer stands beside the others.
NEIGHBOURS = {frozenset({"bench", "reproduce"}), frozenset({"commands", "__main__"})}


def modules() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def owner(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(source: str) -> set[str]:
    """The packages of Motley that a module imports, anywhere in it (also lazily and for types alone)."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "motley" and len(parts) > 1 and parts[1] in RANK:
                found.add(parts[1])
    return found


def allowed(importer: str, package: str) -> bool:
    if importer == package:
        return True
    if RANK[importer] == RANK[package]:
        return frozenset({importer, package}) in NEIGHBOURS or RANK[importer] == 1
    return RANK[package] < RANK[importer]


def test_every_package_has_a_layer() -> None:
    assert {owner(path) for path in modules()} - {"recipes"} <= set(RANK)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_to_the_left(path: Path) -> None:
    wrong = {name for name in imported(path.read_text()) if not allowed(owner(path), name)}
    assert not wrong, f"{path.relative_to(ROOT)} imports {', '.join(sorted(wrong))}, which stand to its right"


def test_the_rule_sees_every_kind_of_import() -> None:
    source = (
        "import motley.runtime.clock\ndef f():\n    from motley import commands\n    from motley.core.keys import Key\n"
    )
    assert imported(source) == {"runtime", "commands", "core"}
    assert not allowed("core", "data")
    assert not allowed("client", "runtime")
    assert not allowed("protocol", "methods")
    assert allowed("runtime", "core")


def test_the_core_needs_no_rare_library() -> None:
    """Heavy or rare imports stand inside functions, or in files of kernels, which are imported only where they run."""
    rare = {"osqp", "pooch", "pyarrow", "matplotlib", "sklearn", "datasets", "ray", "nats", "fastapi", "numba", "dace"}
    for path in (path for path in modules() if not path.stem.endswith("_kernels")):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            heavy = {name.split(".")[0] for name in names} & rare
            assert not heavy, f"{path.relative_to(ROOT)} imports {heavy} for everybody"


def test_a_module_name_tells_its_room() -> None:
    """No two modules share a name, so that a reader finds the file by the word."""
    names = [path.stem for path in modules() if path.stem not in ("__init__", "__main__")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
