"""Named factories (data sets, partitions, models, fleets, methods, ...) and the short form that names them.

The short form is the same everywhere, on the command line and in recipes: ``name``, ``name(key=value, ...)``, and
several joined by ``+``: ``dirichlet(alpha=0.1)``, ``fedprox(mu=0.1)+ama``.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from motley.core.errors import InputError, UnknownNameError
from motley.core.plugins import load_plugins
from motley.core.ranges import check

T = TypeVar("T")


class Call(NamedTuple):
    """A name with arguments."""

    name: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        inner = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        return f"{self.name}({inner})" if inner else self.name


def parse(text: str, kind: str = "name") -> list[Call]:
    """``a(x=1)+b`` as calls; arguments are Python literals (numbers, strings, lists, true/false)."""
    problem = f"Cannot read the {kind} '{text}': write name, name(key=value) or several joined by '+'"
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise InputError(problem + ".") from None
    calls: list[Call] = []
    for node in _terms(tree):
        if isinstance(node, ast.Name):
            calls.append(Call(node.id, {}))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            arguments = {}
            for keyword in node.keywords:
                if keyword.arg is None:
                    raise InputError(problem + ".")
                arguments[keyword.arg] = _literal(keyword.value, problem)
            calls.append(Call(node.func.id, arguments))
        else:
            raise InputError(problem + ".")
    return calls


def _terms(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _terms(node.left)
        yield from _terms(node.right)
    else:
        yield node


def _literal(node: ast.expr, problem: str) -> Any:
    if isinstance(node, ast.Name):
        return {"true": True, "false": False, "none": None, "inf": float("inf")}.get(node.id.lower(), node.id)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise InputError(f"{problem}; '{ast.unparse(node)}' is not a number, string or list.") from None


class Entry(NamedTuple):
    """A registered factory and its one-line summary."""

    name: str
    summary: str
    factory: Callable[..., Any]
    meta: dict[str, Any]

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments a user may give, with their defaults."""
        skip = self.meta.get("hidden", ())
        found = inspect.signature(self.factory).parameters
        return {name: p.default for name, p in found.items() if name not in skip and p.kind is not p.VAR_KEYWORD}


def _same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two factories are the same text, read once more (a module that was reloaded, a cell run again)."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def _package(factory: Callable[..., Any]) -> str:
    return factory.__module__.partition(".")[0]


class Registry(Generic[T]):
    """Factories of one kind, by name.

    beside: another one whose names stand in the same short forms, such as parts beside methods. One name in both is
    refused, unless one package gives both and knows why.
    """

    def __init__(self, kind: str, beside: Registry[Any] | None = None) -> None:
        self.kind = kind
        self.entries: dict[str, Entry] = {}
        self._beside = beside
        if beside is not None:
            beside._beside = self

    def add(self, name: str | None = None, **meta: Any) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Decorator that registers a factory under its own or a given name. ``hidden`` names internal arguments."""

        def wrap(factory: Callable[..., T]) -> Callable[..., T]:
            key = name or factory.__name__
            self._refuse_taken(key, factory)
            summary = (inspect.getdoc(factory) or "").split("\n\n")[0].replace("\n", " ")
            self.entries[key] = Entry(key, summary, factory, meta)
            return factory

        return wrap

    def _refuse_taken(self, name: str, factory: Callable[..., T]) -> None:
        known, kind = self.entries.get(name), self.kind
        if known is not None and _same(known.factory, factory):
            return
        if known is None and self._beside is not None:
            known, kind = self._beside.entries.get(name), self._beside.kind
            if known is not None and _package(known.factory) == _package(factory):
                return
        if known is not None:
            where = known.factory.__module__
            raise InputError(f"There is a {kind} named '{name}' already (in {where}); choose another name.")

    def __getitem__(self, name: str) -> Entry:
        if name not in self:
            raise UnknownNameError(self.kind, name, self.entries)
        return self.entries[name]

    def __contains__(self, name: object) -> bool:
        if name not in self.entries:
            load_plugins()
        return name in self.entries

    def __iter__(self) -> Iterator[Entry]:
        load_plugins()
        return iter(sorted(self.entries.values()))

    def check(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Refuses arguments that the factory of that name does not take."""
        entry = self[name]
        hidden = dict.fromkeys(entry.meta.get("hidden", ()))
        self._bind(entry, (), {**hidden, **{key: arguments[key] for key in arguments if key in entry.parameters}})

    def make(self, name: str, /, *args: Any, **arguments: Any) -> T:
        """Calls the factory of that name; wrong arguments give a sentence."""
        entry = self[name]
        self._bind(entry, args, arguments)
        made: T = entry.factory(*args, **arguments)
        return made

    def _bind(self, entry: Entry, args: tuple[Any, ...], arguments: Mapping[str, Any]) -> None:
        try:
            inspect.signature(entry.factory).bind(*args, **arguments)
        except TypeError as error:
            allowed = ", ".join(entry.parameters) or "none"
            raise InputError(
                f"The {self.kind} '{entry.name}' cannot be made: {error}; its arguments are: {allowed}."
            ) from None
        given = {key: value for key, value in arguments.items() if key in entry.parameters}
        check(f"The {self.kind} '{entry.name}'", entry.factory, given)
