"""A digest of code that a user gave as a function or an object: what tells one loss, one hook from another.

It covers what is compiled of it, its defaults, what it closes over and what it holds, but not what it calls elsewhere.
Compiled code differs between versions of Python, so digests of another version say nothing. An object keeps the digest
it had first in this process: what it counts or collects while it trains does not make it another one.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_FIRST: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # what things were when they were first looked at


def code_digest(*things: Any) -> str:
    """``version:digest``, or an empty text where nothing of it is the user's own code."""
    found = [text for thing in things if (text := _digest(thing))]
    if not found:
        return ""
    return f"{VERSION}:{hashlib.sha256(repr(found).encode()).hexdigest()[:16]}"


def _digest(thing: Any) -> str:
    with contextlib.suppress(TypeError, KeyError):  # what cannot be remembered is looked at anew
        return _FIRST[thing]
    pieces = list(_Looking().pieces(thing))
    found = hashlib.sha256(repr(pieces).encode()).hexdigest() if pieces else ""
    with contextlib.suppress(TypeError):
        _FIRST[thing] = found
    return found


def comparable(one: str, other: str) -> bool:
    """Whether two digests are of the same version of Python."""
    return one.partition(":")[0] == other.partition(":")[0]


def text_of(thing: Any) -> str:
    """A thing in words, without the places in memory that some tell."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))


def is_own(function: Any) -> bool:
    """Whether a function is the user's, not one of this package."""
    module = str(getattr(function, "__module__", None) or "")
    return module != "motley" and not module.startswith("motley.")


class _Looking:
    """One look at a thing; what was seen already, by itself or within itself, is not looked at again."""

    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}  # the things too, so that no other gets the place of one that has gone

    def _is_new(self, thing: Any) -> bool:
        new = id(thing) not in self.seen
        self.seen[id(thing)] = thing
        return new

    def pieces(self, thing: Any) -> Iterator[Any]:
        """What tells it from others; nothing where none of it is the user's."""
        if isinstance(thing, functools.partial):
            yield from self.pieces(thing.func)
            yield self.value([thing.args, dict(thing.keywords)])
        elif inspect.ismethod(thing):
            yield from self.pieces(thing.__self__)
            yield from self.pieces(thing.__func__)
        elif inspect.isfunction(thing):
            if is_own(thing) and self._is_new(thing):
                yield _code(thing.__code__)
                yield self.value([thing.__defaults__, thing.__kwdefaults__, _closed(thing)])
        elif not isinstance(thing, type | types.BuiltinFunctionType | types.ModuleType) and self._is_new(thing):
            yield from self._of_object(thing)

    def _of_object(self, thing: Any) -> Iterator[Any]:
        """The functions of its classes that are not this package's, and what it holds."""
        own = [kind for kind in type(thing).__mro__ if is_own(kind) and kind.__module__ != "builtins"]
        for table in map(vars, own):
            for name in sorted(table):
                yield from self._function_of_a_class(table[name])
        held = _held(thing)
        for name in sorted(held):
            if own or inspect.isfunction(held[name]):
                yield name, self.value(held[name])

    def _function_of_a_class(self, entry: Any) -> Iterator[Any]:
        entry = entry.__func__ if isinstance(entry, staticmethod | classmethod) else entry
        entry = entry.fget if isinstance(entry, property) else entry
        if inspect.isfunction(entry):
            yield from self.pieces(entry)

    def value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().numpy()
        if isinstance(value, np.ndarray):
            return str(value.dtype), value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        if isinstance(value, list | tuple | set | frozenset | Mapping):
            return self._several(value) if self._is_new(value) else "seen"
        if callable(value) or isinstance(value, torch.nn.Module):
            return list(self.pieces(value))
        return text_of(value)

    def _several(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return sorted((text_of(key), repr(self.value(one))) for key, one in value.items())
        found = [self.value(one) for one in value]
        return sorted(map(repr, found)) if isinstance(value, set | frozenset) else found


def _held(thing: Any) -> dict[str, Any]:
    """What an object holds, in its dictionary or in slots."""
    found = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            with contextlib.suppress(AttributeError):
                found[name] = getattr(thing, name)
    return found


def _code(code: types.CodeType) -> Any:
    constants = list(map(_constant, code.co_consts))
    if constants and code.co_name != "<lambda>" and isinstance(code.co_consts[0], str | None):
        constants[0] = ""  # the text that documents, or its place
    return code.co_code.hex(), code.co_names, code.co_varnames, constants


def _constant(one: Any) -> Any:
    if isinstance(one, types.CodeType):
        return _code(one)
    if isinstance(one, tuple):
        return list(map(_constant, one))
    return sorted(map(repr, one)) if isinstance(one, frozenset) else repr(one)


def _closed(function: types.FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not filled yet
            found.append(None)
    return found
