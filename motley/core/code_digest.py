"""A digest of code that a user gave as a function or an object: what tells one loss, one hook from another.

It covers what is compiled of it, its defaults and what it closes over, but not what it calls elsewhere. Compiled code
differs between versions of Python, so digests of another version say nothing.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def code_digest(*things: Any) -> str:
    """``version:digest``, or an empty text where nothing of it is the user's own code."""
    pieces = [piece for thing in things for piece in _pieces(thing, 0)]
    if not pieces:
        return ""
    return f"{VERSION}:{hashlib.sha256(repr(pieces).encode()).hexdigest()[:16]}"


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


def _pieces(thing: Any, depth: int) -> Iterator[Any]:
    if depth > DEEPEST:
        return
    if isinstance(thing, functools.partial):
        yield from _pieces(thing.func, depth + 1)
        yield _value([*thing.args, *sorted(thing.keywords.items())], depth)
    elif inspect.ismethod(thing):
        yield from _pieces(thing.__self__, depth + 1)
        yield from _pieces(thing.__func__, depth + 1)
    elif inspect.isfunction(thing):
        if is_own(thing):
            yield _code(thing.__code__)
            yield _value([thing.__defaults__, thing.__kwdefaults__, _closed(thing)], depth)
    elif not isinstance(thing, type | types.BuiltinFunctionType | types.ModuleType):
        yield from _of_object(thing, depth)


def _of_object(thing: Any, depth: int) -> Iterator[Any]:
    """The functions of its classes that are not this package's, and what it holds."""
    own = [kind for kind in type(thing).__mro__ if is_own(kind) and kind.__module__ != "builtins"]
    for table in map(vars, own):
        for name in sorted(table):
            if inspect.isfunction(table[name]):
                yield from _pieces(table[name], depth + 1)
    held = getattr(thing, "__dict__", {})
    for name in sorted(held):
        if own or inspect.isfunction(held[name]):
            yield name, _value(held[name], depth)


def _code(code: types.CodeType) -> Any:
    constants = [_code(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts]
    return code.co_code.hex(), code.co_names, code.co_varnames, constants[_documented(code) :]


def _documented(code: types.CodeType) -> int:
    """1 where the first constant is a text that documents: it changes nothing."""
    return int(bool(code.co_consts) and isinstance(code.co_consts[0], str))


def _closed(function: types.FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not filled yet
            found.append(None)
    return found


def _value(value: Any, depth: int) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    if isinstance(value, list | tuple):
        return [_value(one, depth) for one in value]
    if callable(value):
        return list(_pieces(value, depth + 1))
    return text_of(value)


DEEPEST = 4  # functions within functions that are followed
