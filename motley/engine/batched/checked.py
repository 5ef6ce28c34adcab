"""A quick way of computing something, compared with the plain way before it is trusted."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Checked:
    """Computes both ways when first used; the quick one is dropped, with a warning, where it fails or differs.

    A GPU or a compiler on which a kernel does not work then costs a moment and no result.
    """

    def __init__(self, what: str, possible: bool = True) -> None:
        self.what = what
        self.works: bool | None = None if possible else False  # None: not known yet

    def __call__(self, quick: Callable[[], T], plain: Callable[[], T], same: Callable[[T, T], bool]) -> T:
        if self.works is False:
            return plain()
        try:
            found = quick()
        except Exception as error:  # whatever a compiler may raise
            self._drop(f"{type(error).__name__}: {error}".splitlines()[0])
            return plain()
        if self.works:
            return found
        expected = plain()
        if same(found, expected):
            self.works = True
        else:
            self._drop("it gives other numbers")
        return expected

    def _drop(self, why: str) -> None:
        self.works = False
        warnings.warn(f"The quick way of {self.what} does not work here ({why}); the plain one is used.", stacklevel=3)
