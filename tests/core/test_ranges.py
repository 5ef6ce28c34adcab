"""Arguments outside what annotations allow get a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from motley.core.errors import InputError
from motley.core.ranges import (
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    PositiveShare,
    Share,
    ShareSchedule,
    check,
)
from motley.core.schedule import Linear
from motley.methods import METHODS, make_method
from motley.runtime.launch import run as run_recipe


def factory(
    share: Share = 0.5,
    part: PositiveShare = 1.0,
    positive: Positive | None = None,
    least: NotNegative = 0.0,
    tiers: Count = 1,
    extra: CountOrZero = 0,
    rate: ShareSchedule = 0.5,
    flag: bool = True,
    kind: str = "a",
    plain: float = 0.0,
    several: list[float] | tuple[float, ...] = (),
    function: Callable[[int], float] | None = None,
    whatever: Any = None,
) -> None:
    """Has an argument of every kind."""


@pytest.mark.parametrize(
    "good",
    [
        {"share": 0}, {"share": 1.0}, {"part": 1}, {"positive": None}, {"positive": 1e-9}, {"least": math.inf},
        {"tiers": 3}, {"extra": 0}, {"rate": 1}, {"rate": Linear(0.0, 5.0)}, {"flag": False}, {"kind": ""},
        {"plain": -3}, {"several": [1, 2.5]}, {"several": ()}, {"function": abs}, {"function": None},
        {"whatever": object()}, {"unknown": 3},
    ],
)  # fmt: skip
def test_what_is_allowed(good: dict[str, Any]) -> None:
    check("It", factory, good)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"share": 1.1}, "It has share=1.1; it must be a number from 0 to 1."),
        ({"share": math.nan}, "It has share=nan; it must be a number from 0 to 1."),
        ({"share": True}, "It has share=True; it must be a number from 0 to 1."),
        ({"share": "a"}, "It has share='a'; it must be a number from 0 to 1."),
        ({"part": 0}, "It has part=0; it must be a number above 0 and up to 1."),
        ({"positive": 0.0}, "It has positive=0.0; it must be a number above 0 or none."),
        ({"least": -1}, "It has least=-1; it must be a number of at least 0."),
        ({"tiers": 0}, "It has tiers=0; it must be a whole number of at least 1."),
        ({"tiers": 2.5}, "It has tiers=2.5; it must be a whole number of at least 1."),
        ({"extra": -1}, "It has extra=-1; it must be a whole number of at least 0."),
        ({"rate": 2}, "It has rate=2; it must be a number from 0 to 1."),
        ({"flag": "maybe"}, "It has flag='maybe'; it must be true or false."),
        ({"flag": 1}, "It has flag=1; it must be true or false."),
        ({"kind": 3}, "It has kind=3; it must be a text."),
        ({"plain": None}, "It has plain=None; it must be a number."),
        ({"several": ["a"]}, "It has several=['a']; it must be a list of numbers."),
        ({"several": 3}, "It has several=3; it must be a list of numbers."),
    ],
)
def test_what_is_refused(bad: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        check("It", factory, bad)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "method",
    [
        "fedbuff(buffer=2.5)", "fedat(tiers=0)", "fedat(tiers=2.5)", "tifl(tiers=0)", "tifl(interval=0)",
        "oort(exploration=3)", "oort(alpha='x')", "fjord(widths=['a'])", "freezefl(restart=-1)", "fedasync(alpha=5)",
        "fedasync(alpha=-1)", "fedasync(maximum_staleness=-1)", "ama_async(alpha0=2)", "ama_async(b=-1)",
        "ama_async(maximum=2)", "fedsae_ira(u=-1)", "fedsae_fassa(alpha=2)", "fedsae_fassa(gamma1=-9)",
        "freezefl(ema=2)", "freezefl(beta=-3)", "freezefl(deadline=-1)", "heterofl(power=-1)", "safa(lag=1.5)",
        "power_of_choice(candidates=-4)", "fedcs(seconds=-1)", "rbcs(penalty=-1)", "radfedm(alpha=2)",
        "radfedp(rho=-1)", "radfeda(eta=-1)", "radfedi(gamma=1.5)", "fedprox(mu=-1)", "fedadam(beta2=7)",
        "rebafl(mu=-0.1)", "moon(temperature=0)", "clip_gradient(norm=0)",
    ],
)  # fmt: skip
def test_methods_refuse_numbers_without_a_meaning(method: str) -> None:
    with pytest.raises(InputError):
        make_method(method)


def test_defaults_are_allowed() -> None:
    for entry in METHODS:
        check(entry.name, entry.factory, entry.parameters)


@pytest.mark.parametrize(
    "options", [{"maximum_staleness": "abc"}, {"reselect": "maybe"}, {"maximum_staleness": -1}, {"seconds": 3}]
)
def test_so_do_protocols(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="protocol 'late'"):
        run_recipe("digits", clients=4, rounds=1, method="ama_async", options=options)


def test_an_option_that_the_plain_round_does_not_know_is_refused() -> None:
    with pytest.raises(InputError, match="The protocol 'synchronous' has no option 'foo'; its options are: none"):
        run_recipe("digits", clients=4, rounds=1, options={"foo": 3})
