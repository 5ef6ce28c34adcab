"""The shape of the code: functions that a reader can hold in mind, classes and files of a size."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import motley

ROOT = Path(motley.__file__).parent
BRANCHES, METHODS, LINES = 10, 20, 400
FILES = sorted([*ROOT.rglob("*.py"), *Path(__file__).parent.rglob("*.py")])
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def complexity(node: ast.AST) -> int:
    """McCabe's number of paths through a function: one more than its branches; inner functions count by themselves."""
    return 1 + sum(_branches(inner) for inner in _own(node))


def _own(node: ast.AST) -> Iterator[ast.AST]:
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, FUNCTIONS):
            yield inner
            yield from _own(inner)


def _branches(node: ast.AST) -> int:
    match node:
        case ast.If() | ast.IfExp() | ast.ExceptHandler() | ast.Assert():
            return 1
        case ast.For() | ast.AsyncFor() | ast.While() | ast.Try():
            return int(bool(node.orelse)) + (not isinstance(node, ast.Try))
        case ast.comprehension():
            return 1 + len(node.ifs)
        case ast.BoolOp():
            return len(node.values) - 1
        case ast.match_case():
            return 1
    return 0


def found(path: Path) -> list[str]:
    """What is too large in a file."""
    text = path.read_text()
    told = [f"the file has {text.count(chr(10))} lines"] if text.count("\n") > LINES else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, FUNCTIONS) and ROOT in path.parents and complexity(node) > BRANCHES:
            told.append(f"{node.name} has {complexity(node)} paths")
        if isinstance(node, ast.ClassDef) and methods(node) > METHODS:
            told.append(f"{node.name} has {methods(node)} methods")
    return told


def methods(node: ast.ClassDef) -> int:
    return sum(isinstance(one, FUNCTIONS) for one in node.body)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT.parent)))
def test_nothing_is_too_large(path: Path) -> None:
    assert not found(path), f"{path.relative_to(ROOT.parent)}: {'; '.join(found(path))}"


def test_paths_are_counted() -> None:
    source = """
def f(x):
    assert x
    for a in [b for b in x if b if a]:
        if a and b or c:
            return 1 if a else 2
    try:
        pass
    except OSError:
        pass
"""
    assert complexity(ast.parse(source).body[0]) == 1 + 1 + 3 + 1 + 3 + 1 + 1
