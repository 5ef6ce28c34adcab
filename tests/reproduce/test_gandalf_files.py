"""GANDALF's reproduction files: their phases can be made, and differ where the figures do."""

from __future__ import annotations

import pytest

from motley.reproduce import reproduction as spec
from motley.runtime.gan_phase import GanPhase
from motley.runtime.generate_phase import GeneratePhase
from motley.runtime.phases import Phase, make_phases

FILES = [name for name in spec.names() if name.startswith("gandalf-")]


def phases(name: str, row: str) -> dict[str, Phase]:
    made = spec.read(name)
    cell = next(cell for cell in made.cells() if cell.row == row)
    return {phase.name: phase for phase in make_phases(made.recipe_of(cell, spec.Draw(0), False))}


def test_all_are_there() -> None:
    assert [name.removeprefix("gandalf-") for name in FILES] == [
        "fig-10", "fig-11", "fig-5", "fig-6", "fig-7", "fig-8", "fig-9", "table-2",
    ]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_phases_fit_together(name: str) -> None:
    """Every place's phases can be made, and those that generate find their generators and their classifier."""
    made = spec.read(name)
    for cell in made.cells():
        earlier: dict[str, Phase] = {}
        for phase in make_phases(made.recipe_of(cell, spec.Draw(0), False)):
            if isinstance(phase, GeneratePhase):
                phase.check_wishes(earlier)
            earlier[phase.name] = phase


def test_what_varies() -> None:
    noisy = phases("gandalf-fig-5", "sigma = 1e-2")["gan"]
    assert isinstance(noisy, GanPhase)
    assert "hand_over_noise(sigma=0.01, clip=None)" in noisy.recipe.method
    small = phases("gandalf-fig-6", "tau = 0.07, without static")["samples"]
    assert isinstance(small, GeneratePhase)
    assert (small.wishes.tau, small.wishes.static) == (0.07, "")
    many = phases("gandalf-fig-10", "SDA-FL")["gan"]
    assert isinstance(many, GanPhase)
    assert many.recipe.options["groups"] == 20
    shared = phases("gandalf-fig-10", "FedDPGAN")["gan"]
    assert isinstance(shared, GanPhase)
    assert (shared.recipe.protocol, shared.recipe.cohort) == ("synchronous", 20)
    assert "gan" not in phases("gandalf-fig-5", "real data")


def test_the_papers_settings() -> None:
    made = phases("gandalf-fig-9", "GANDALF")
    gan = made["gan"]
    assert isinstance(gan, GanPhase)
    r = gan.recipe
    assert (r.lr, r.batch_size, r.options["groups"]) == (1e-4, 256, 2)
    assert r.problem == "wgan_gp(critic_steps=2, penalty=10.0, generator_rate=0.5)"
    assert "fixed_steps(steps=9)" in r.method
