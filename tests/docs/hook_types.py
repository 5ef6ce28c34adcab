"""The page on what hooks see, made from the code: `python -m tests.docs.hook_types` writes it anew."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from motley.core import bill, types
from motley.core.hooks import HOOKS

PAGE = Path(__file__).parents[2] / "docs" / "hook_types.md"
ON_CLIENTS = ("Client", "Mine", "Facts", "Data", "Batch", "Output")
SHOWN = {
    types: (*ON_CLIENTS, "Setting", "Round", "Pool", "Plan", "Updates", "Outcomes"),
    bill: ("Bill", "Cost"),
}
SAID_AS = {"s": "Tree", "c": "Client", "me": "Mine", "rnd": "Round", "pool": "Pool", "plan": "Plan", "data": "Data"}
SAID_AS |= {"batch": "Batch", "out": "Output", "updates": "Updates", "outcomes": "Outcomes", "setting": "Setting"}
SAID_AS |= {"facts": "Facts", "bill": "Bill", "cost": "Cost"}

START = """# The types that hooks see

What the arguments of a part's [hooks](concepts.md#hooks) hold, field by field. All of it is listed in `motley.extend`.
Client hooks see ONE client, so its numbers are 0-d tensors, and an engine may map the hook over many; server hooks see
tensors with a row per client. K are updates or clients, N all clients, A those that are here, P parameters, L layers, C
classes, F features, B samples of a minibatch, n all samples of a client. Nothing is changed in place: a hook returns a
changed copy (`c.with_(params=...)`, `plan._replace(epochs=...)`, `bill.plus(forwards=1.0)`).

A `Tree` is a tensor, or dicts and tuples of trees: the shape of all that a part keeps, sends and notes.

This page is made from the code (`motley/core/types.py`, `motley/core/bill.py`).
"""


def page() -> str:
    """The whole page."""
    parts = [START]
    for module, names in SHOWN.items():
        text = Path(module.__file__ or "").read_text()
        comments = dict(_comments(text))
        classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
        parts += [_section(classes[name], comments) for name in names]
    return "\n".join(parts)


def _section(node: ast.ClassDef, comments: dict[int, str]) -> str:
    lines = [f"## {node.name}", "", _cell(ast.get_docstring(node) or ""), ""]
    seen = [name for name, rule in HOOKS.items() if node.name in map(SAID_AS.get, rule.arguments)]
    if seen:
        lines += ["Seen by " + ", ".join(f"`{name}`" for name in seen) + ".", ""]
    lines += ["| field | type | what it is |", "| --- | --- | --- |"]
    lines += [f"| {row} |" for row in _rows(node, comments)]
    return "\n".join([*lines, ""])


def _rows(node: ast.ClassDef, comments: dict[int, str]) -> Iterator[str]:
    for one in node.body:
        if isinstance(one, ast.AnnAssign):
            yield f"`{ast.unparse(one.target)}` | {_typed(one.annotation)} | {_cell(comments.get(one.lineno, ''))}"
        elif isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
            is_property = any(ast.unparse(mark) == "property" for mark in one.decorator_list)
            given = "" if is_property else f"({', '.join(arg.arg for arg in _taken(one))})"
            yield f"`{one.name}{given}` | {_typed(one.returns)} | {_cell(ast.get_docstring(one) or '')}"


def _taken(function: ast.FunctionDef) -> list[ast.arg]:
    last = [function.args.kwarg] if function.args.kwarg else []
    return [*function.args.args[1:], *last]


def _typed(annotation: ast.expr | None) -> str:
    return "" if annotation is None else "`" + ast.unparse(annotation).replace("|", "or") + "`"


def _cell(text: str) -> str:
    return text.split("\n\n", maxsplit=1)[0].replace("\n", " ").replace("|", "or").replace("``", "`")


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


if __name__ == "__main__":
    PAGE.write_text(page())
