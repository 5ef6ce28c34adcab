"""The page on what hooks see is the code."""

from __future__ import annotations

import inspect

from motley import extend
from motley.core.hooks import HOOKS
from tests.docs.hook_types import PAGE, SAID_AS, SHOWN, page


def test_the_page_is_made_from_the_code() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.docs.hook_types"


def test_every_field_is_explained_and_every_type_is_public() -> None:
    for row in page().splitlines():
        if row.startswith("| `"):
            assert not row.endswith("|  |"), row
    assert {name for names in SHOWN.values() for name in names} <= set(extend.__all__)


def test_arguments_are_said_with_the_types_of_the_hooks() -> None:
    for name, rule in HOOKS.items():
        known = {
            one: kind.annotation.split(".")[-1]
            for one, kind in inspect.signature(rule.kind.__call__).parameters.items()
            if one in SAID_AS
        }
        assert known == {one: SAID_AS[one] for one in known}, name
