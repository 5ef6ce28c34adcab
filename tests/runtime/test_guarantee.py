"""What the noise before hand-overs guarantees: by hand, beside dp-accounting, and in the summary of a run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import motley
from motley.core.part import compose
from motley.core.types import Client
from motley.methods import make_method
from motley.runtime.guarantee import account, composed, delta_of, epsilon_of, sentence
from tests import tiny

SMALL: dict[str, Any] = {"clients": 6, "rounds": 3, "model": "mlp(hidden=[8])", "executor": "loop"}


@pytest.mark.parametrize("sigma", [0.7, 1.0, 4.0])
@pytest.mark.parametrize("times", [1, 10])
def test_it_is_what_dp_accounting_says(sigma: float, times: int) -> None:
    """Its accountant by privacy loss distributions is an upper bound on a grid; ours is the closed form."""
    accounting = pytest.importorskip("dp_accounting")
    event = accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(sigma), times)
    theirs = accounting.pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    assert composed(1e-5, sigma, times) == pytest.approx(theirs, rel=2e-3)


def test_by_hand() -> None:
    """epsilon = 0: delta is the distance of two normals, 2 Phi(1 / (2 sigma)) - 1."""
    for sigma in (0.5, 1.0, 3.0):
        assert delta_of(0.0, sigma) == pytest.approx(math.erf(0.5 / sigma / math.sqrt(2)))
    assert delta_of(epsilon_of(1e-5, 2.0), 2.0) == pytest.approx(1e-5, rel=1e-6)
    assert composed(1e-5, 2.0, 4) == epsilon_of(1e-5, 1.0)
    assert composed(1e-5, 2.0, 0) == 0.0
    assert epsilon_of(1e-5, 1e-5) == math.inf


def test_the_more_tasks_the_less_is_guaranteed() -> None:
    method = make_method("fedavg+hand_over_noise(sigma=2, clip=1)")
    chosen = torch.tensor([3, 5, 1]).numpy()
    found = account(method, chosen)
    assert found is not None
    assert found["epsilon"] == composed(1e-5, 2.0, 5) > found["epsilon_per_hand_over"] == epsilon_of(1e-5, 2.0)


def test_the_summary_tells() -> None:
    run = motley.run("digits", **SMALL, method="fedavg+hand_over_noise(sigma=3, clip=1)", cohort=6)
    told = run.summary["privacy"]
    assert told["guarantee"] is True
    assert told["hand_overs"] == 3
    assert "in 3 tasks" in sentence(told)
    assert "privacy" not in motley.run("digits", **SMALL).summary


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("sigma=3", "not clipped, so their sensitivity is not bounded: the noise guarantees nothing"),
        ("sigma=0, clip=1", "without noise"),
        ("sigma=1e-5, clip=1", "so small that epsilon is above"),
    ],
)
def test_no_guarantee_is_said(arguments: str, why: str) -> None:
    told = account(make_method(f"fedavg+hand_over_noise({arguments})"), torch.ones(4).numpy())
    assert told is not None
    assert told["guarantee"] is False
    assert why in sentence(told)


def test_what_others_send_is_not_covered() -> None:
    told = account(make_method("rebafl+hand_over_noise(sigma=3, clip=1)"), torch.ones(4).numpy())
    assert told is not None
    assert "Not covered: what prototype_augmentation sends" in sentence(told)


def test_histograms_are_accounted_for_sample_by_sample() -> None:
    options = {"histogram_noise": 2.0, "groups": 2}
    told = motley.run("digits", **SMALL, protocol="mediators", options=options).summary["privacy"]
    assert told["histogram_epsilon_per_sample"] == epsilon_of(1e-5, 2.0)
    assert sentence(told).startswith("Histogram: (")


def test_noise_and_clipping_by_hand() -> None:
    """``delta * min(1, C / ||delta||) + N(0, (sigma s)^2)``."""
    payload = torch.full((40_000,), 0.5)
    c = _client()

    def encoded(arguments: str) -> torch.Tensor:
        part = make_method(f"fedavg+hand_over_noise({arguments})").parts[-1]
        return tiny.filled(part.encode)(c, c.mine(part.name), payload)

    added = encoded("sigma=0.1, sensitivity=3") - payload
    assert added.std() == pytest.approx(0.3, rel=0.02)
    assert abs(float(added.mean())) < 0.005
    clipped = encoded("sigma=0, clip=20")
    torch.testing.assert_close(clipped, payload * (20 / 100.0))
    assert (encoded("sigma=0.1, clip=20") - clipped).std() == pytest.approx(2.0, rel=0.02)
    assert torch.equal(encoded("sigma=0, clip=101"), payload)


def _client() -> Client:
    e = tiny.experiment(compose(make_method("fedavg+hand_over_noise")))
    from motley.client.trainer import new_client

    facts = e.site.facts([tiny.assignment(0, net=e.net)]).row(0)
    return new_client(e.training, e.net.initial(), facts, torch.tensor(7))


PHASES: list[dict[str, Any]] = [{"name": "first", "rounds": 2}, {"name": "second", "rounds": 3, "initial": "first"}]


def _in_phases(*methods: str) -> dict[str, Any]:
    phases = [{**phase, "method": method} for phase, method in zip(PHASES, methods, strict=True)]
    return motley.run("digits", **SMALL, cohort=6, phases=phases).summary


def test_phases_are_accounted_for_together() -> None:
    """Two hand-overs with sigma = 3, then three with sigma = 4: those of one with (2 / 9 + 3 / 16)^(-1/2)."""
    told = _in_phases("fedavg+hand_over_noise(sigma=3, clip=1)", "fedavg+hand_over_noise(sigma=4, clip=1)")
    private = told["privacy"]
    assert private["guarantee"] is True
    assert private["hand_overs"] == 5
    assert private["epsilon"] == pytest.approx(epsilon_of(1e-5, (2 / 9 + 3 / 16) ** -0.5))
    assert private["epsilon"] > max(phase["privacy"]["epsilon"] for phase in told["phases"].values())
    assert told["bytes_up"] == sum(phase["bytes_up"] for phase in told["phases"].values())


@pytest.mark.parametrize("bare", [0, 1])
def test_one_phase_without_noise_leaves_nothing(bare: int) -> None:
    methods = ["fedavg+hand_over_noise(sigma=3, clip=1)"] * 2
    methods[bare] = "fedavg"
    private = _in_phases(*methods)["privacy"]
    assert private["guarantee"] is False
    assert PHASES[bare]["name"] in private["why"]
    assert "without noise" in sentence(private)
