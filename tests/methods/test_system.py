"""Every method against system heterogeneity runs on a rough fleet, alike on the loop and the batched executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from motley.core.errors import ConflictError, InputError
from motley.core.part import PARTS
from motley.core.registry import parse
from motley.methods import METHODS, make_method
from motley.runtime.launch import run as run_recipe
from tests.protocol.world import Chosen, fleet_of, run_of

ROOMS = ("motley.methods.device_family", "motley.server.select", "motley.server.select_speed")
NAMES = sorted(entry.name for entry in METHODS if entry.factory.__module__ in ROOMS)
WORLD: dict[str, Any] = {
    "fleet": "uniform_spread+affordable(low=2, high=4)+loss(probability=0.1)+delay(probability=0.3, maximum_rounds=2)",
    "clients": 8,
    "cohort": 4,
    "rounds": 3,
    "epochs": 2,
    "model": "mlp(hidden=[8, 6])",
}


@pytest.mark.parametrize("name", NAMES)
def test_executors_agree(name: str) -> None:
    loop = run_recipe("digits", **WORLD, method=name, executor="loop")
    batched = run_recipe("digits", **WORLD, method=name, executor="batched", device="cpu")
    assert torch.allclose(loop.params, batched.params, atol=1e-5)
    assert bool(torch.isfinite(loop.params).all())
    assert [record.staleness for record in loop.records] == [record.staleness for record in batched.records]


def test_there_are_all_of_them() -> None:
    wanted = "ama_async fedasync fedbuff safa fedat fedsae_ira fedsae_fassa freezefl heterofl fjord oort tifl"
    assert {*wanted.split(), "power_of_choice", "fedcs", "rbcs", "ama_fes_async"} == set(NAMES)


def test_combinations() -> None:
    assert make_method("fedsae_ira+fedprox(partial=false)+ama").protocol == "synchronous"
    assert make_method("freezefl(selection=false)+oort").has("select")
    with pytest.raises(ConflictError, match="who trains"):
        make_method("freezefl+oort")
    with pytest.raises(ConflictError, match="how updates become one model"):
        make_method("fedasync+safa")
    with pytest.raises(ConflictError, match="previous global model"):
        make_method("ama_async+ama")
    with pytest.raises(ConflictError, match=r"what a client that stops early sends \(fedprox\(partial=false\)"):
        make_method("fedprox+fedsae_ira")
    for method in ("fedasync", "fedbuff", "ama_async", "safa"):
        with pytest.raises(ConflictError, match="decides by itself what an old update counts"):
            make_method(f"{method}+staleness_weight")


@pytest.mark.parametrize("method", ["fedasync(maximum_staleness=2)", "fedbuff(buffer=3)"])
def test_asynchronous_merging_in_late_rounds(method: str) -> None:
    """A method takes with it what the other protocol knows, and leaves its buffer behind."""
    world = {**WORLD, "rounds": 6, "fleet": "delay(probability=0.6, maximum_rounds=3)"}
    result = run_recipe("digits", **world, method=method, protocol="late")
    ages = [age for record in result.records for age in record.staleness]
    assert max(ages) == (2 if "maximum_staleness" in method else 3)
    assert min(ages) == 0
    assert result.summary["staleness"] == {str(age): ages.count(age) for age in sorted(set(ages))}


def test_wrong_options_get_a_sentence() -> None:
    with pytest.raises(InputError, match="buffer"):
        run_recipe("digits", **WORLD, method="fedbuff(buffer=0)")
    with pytest.raises(InputError, match="round_seconds, maximum_staleness, reselect"):
        run_recipe("digits", **WORLD, method="ama_async", options={"seconds": 3})


@pytest.mark.parametrize(("method", "asked"), [("ama_async", [3, 3, 3, 3]), ("ama_async+scaffold", [3, 2, 2, 3])])
def test_late_clients_are_asked_again_only_where_they_keep_nothing(method: str, asked: list[int]) -> None:
    """The update of client 1 in round 1 comes two rounds later; it joins round 3."""
    fleet = fleet_of(Chosen((1.0, 1.0, 1.0), held=((1, 1, 2),)))
    records = run_of(fleet, "late", make_method(method), rounds=4).go().records
    assert [record.participants for record in records] == asked
    assert records[2].staleness.count(2) == 1


@pytest.mark.parametrize("spec", ["oort(cutoff=0.5, window=3, pace=0.1)", "power_of_choice(candidates=7)"])
def test_methods_of_one_part_take_all_of_its_arguments(spec: str) -> None:
    """By short form and as params, and the part gets them."""
    call = parse(spec)[0]
    for method in (make_method(spec), make_method(call.name, {call.name: call.arguments})):
        (part,) = method.parts
        assert part.name == call.name
        assert call.arguments.items() <= part.arguments.items()
    assert METHODS[call.name].parameters == PARTS[call.name].parameters


def test_wrong_options_are_told_before_anything_is_written(tmp_path: Path) -> None:
    for method in ("fedavg", "fedat"):
        with pytest.raises(InputError, match="has no option 'foo'"):
            run_recipe("digits", folder=tmp_path / "run", **WORLD, method=method, options={"foo": 1})
        assert not (tmp_path / "run").exists()


def test_how_the_model_serves_clients_is_measured_when_asked() -> None:
    result = run_recipe("digits", **WORLD, method="fedavg", diagnostics=["service"])
    extra = result.records[-1].extra
    assert 0 <= extra["client_accuracy_worst_decile"] <= extra["client_accuracy"] <= 1
    assert len(result.summary["fairness"]["chosen_by_speed"]) == 8
