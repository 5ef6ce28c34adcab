"""The papers' fleets, checked against what their texts say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from motley.core.keys import Key
from motley.fleet.layers import make_fleet

KEY = Key.root(4)


def miss(epochs: float) -> float:
    """E[Phi((epochs - mu) / sigma)] for mu ~ U[5, 10), sigma ~ U[mu/4, mu/2), by quadrature."""
    mu = (np.arange(400) + 0.5) / 400 * 5 + 5
    share = (np.arange(200) + 0.5) / 200 * 0.25 + 0.25
    return float(ndtr((epochs - mu[:, None]) / (mu[:, None] * share)).mean())


def stragglers(spec: str, epochs: float, n: int = 1000, rounds: int = 200, cohort: int = 30) -> float:
    """Share of FedAvg's uniformly drawn clients that cannot afford the assigned epochs."""
    fleet = make_fleet(spec, n, KEY)
    rng = KEY.fold("cohorts").generator()
    missed = [fleet.fates(rng.choice(n, cohort, replace=False), t).affordable < epochs for t in range(1, rounds + 1)]
    return float(np.mean(missed))


@pytest.mark.parametrize(("n", "cohort"), [(200, 10), (1000, 30), (772, 10), (100, 10)])
def test_fedsae_fifteen_epochs_leave_about_97_percent_stragglers(n: int, cohort: int) -> None:
    """Table II: 97.5, 96.6, 96.5 and 97.1 % on four data sets with these numbers of clients."""
    assert miss(15 - 1) == pytest.approx(0.967, abs=0.001)
    assert 0.955 < stragglers("fedsae", 15, n, 200, cohort) < 0.98


def test_fedsae_rises_from_10_to_20_epochs_as_in_figure_1() -> None:
    """Fig. 1: the mean drop-out rate rises by up to 41 % from 10 to 20 epochs."""
    assert miss(20 - 1) / miss(10 - 1) - 1 == pytest.approx(0.419, abs=0.002)
    rise = stragglers("fedsae", 20, rounds=400) / stragglers("fedsae", 10, rounds=400) - 1
    assert rise == pytest.approx(0.42, abs=0.04)


def test_fedsae_with_fractions_of_epochs_follows_the_normal() -> None:
    fleet = make_fleet("fedsae(whole=false)", 100_000, KEY)
    drawn = np.stack([fleet.fates(np.arange(100_000), t).affordable for t in (1, 2, 3)])
    for epochs in (5, 10, 15):
        assert (drawn < epochs).mean() == pytest.approx(miss(epochs), abs=0.003)
    assert miss(15) == pytest.approx(0.980, abs=0.001)


@pytest.mark.parametrize(("name", "probability"), [("ama_fes_moderate", 0.3), ("ama_fes_severe", 0.7)])
def test_ama_fes(name: str, probability: float) -> None:
    """Table I: K = 50, p in 0.25, 0.5, 0.75; delays of at most 5, 10, 15 rounds with 30 or 70 %."""
    for fraction, maximum in ((0.25, 5), (0.5, 10), (0.75, 15)):
        fleet = make_fleet(f"{name}(fraction={fraction}, maximum_rounds={maximum})", 50, KEY)
        assert fleet.limited.sum() == round(fraction * 50)
        late = np.concatenate([fleet.fates(np.arange(50), t).delay_rounds for t in range(1, 201)])
        assert (late > 0).mean() == pytest.approx(probability, abs=0.02)
        assert set(late) == set(range(maximum + 1))
        assert fleet.present(1, 0.0).all()


def test_presets_equal_their_layers_written_out() -> None:
    a = make_fleet("ama_fes_severe(fraction=0.5, maximum_rounds=10)", 40, KEY)
    b = make_fleet("limited(fraction=0.5)+delay(probability=0.7, maximum_rounds=10)", 40, KEY)
    np.testing.assert_array_equal(a.limited, b.limited)
    np.testing.assert_array_equal(a.fates(np.arange(40), 5).delay_rounds, b.fates(np.arange(40), 5).delay_rounds)
    assert a.layers == b.layers


def test_freezefl() -> None:
    """Section V-A: uniform, up to six times apart, compute and communication proportional."""
    fleet = make_fleet("freezefl", 5000, KEY)
    assert 5.9 < fleet.flops.max() / fleet.flops.min() <= 6.0
    np.testing.assert_allclose(fleet.flops / fleet.up, fleet.flops[0] / fleet.up[0])
    assert fleet.flops.mean() / fleet.flops.max() == pytest.approx(3.5 / 6, abs=0.01)


def test_rebafl() -> None:
    """Table 1: p = 0.5; section 5.3: five clusters of four clients with p = .5, .5, .3, .3, .2."""
    fleet = make_fleet("rebafl", 50, KEY)
    assert np.mean([fleet.present(t, 0.0).mean() for t in range(1, 201)]) == pytest.approx(0.5, abs=0.02)
    clusters = np.repeat(np.arange(5), 4)
    grouped = make_fleet("rebafl_clustered", 20, KEY, clusters=clusters)
    here = np.mean([grouped.present(t, 0.0) for t in range(1, 2001)], axis=0)
    np.testing.assert_allclose(here.reshape(5, 4).mean(1), [0.5, 0.5, 0.3, 0.3, 0.2], atol=0.02)
