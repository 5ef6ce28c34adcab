"""What the noise that clients add guarantees: differential privacy of each hand-over, and of a whole run.

The mechanism is Gaussian: a client's change of the model, shortened to the norm C, plus N(0, (sigma C)^2 I). Two worlds
are told apart: one with the client's data, and one in which the client changes nothing. One hand-over then satisfies
exactly the (epsilon, delta) of the Gaussian mechanism with noise multiplier sigma (Balle and Wang 2018), and k of them
by one client, each chosen in the knowledge of those before, that with sigma / sqrt(k).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from motley.core.part import Method

LARGEST = 1e6  # epsilons above mean nothing
DELTA = 1e-5  # where no part says which


def delta_of(epsilon: float, sigma: float) -> float:
    """``delta = Phi(1 / (2 sigma) - epsilon sigma) - e^epsilon Phi(-1 / (2 sigma) - epsilon sigma)``."""
    first = float(log_ndtr(0.5 / sigma - epsilon * sigma))
    second = epsilon + float(log_ndtr(-0.5 / sigma - epsilon * sigma))
    return max(0.0, math.exp(first) - math.exp(min(second, first)))


def epsilon_of(delta: float, sigma: float) -> float:
    """The smallest epsilon for which one use with this noise multiplier is (epsilon, delta)-private; inf without."""
    if math.isinf(sigma):
        return 0.0
    if sigma <= 0 or delta_of(LARGEST, sigma) > delta:
        return math.inf
    low, high = 0.0, 1.0
    while delta_of(high, sigma) > delta:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, sigma) > delta else (low, middle)
    return high


def composed(delta: float, sigma: float, times: int) -> float:
    """The epsilon of so many uses, one after the other; 0 where there was none."""
    return 0.0 if times == 0 else epsilon_of(delta, sigma / math.sqrt(times))


def account(method: Method, chosen: NDArray[Any], histogram_noise: float | None = None) -> dict[str, Any] | None:
    """What a run with these parts, in which clients were given so many tasks [N], guarantees; None: adds no noise.

    Every task counts as handed over, though it may have been lost on its way.
    """
    noisy = next((part for part in method.parts if part.name == "hand_over_noise"), None)
    if noisy is None and not histogram_noise:
        return None
    delta = DELTA if noisy is None else float(noisy.arguments["delta"])
    most = int(np.max(chosen))
    found: dict[str, Any] = {"delta": delta, "hand_overs": most}
    if noisy is not None:
        found |= _of_weights(method, noisy.arguments, delta, most)
    if histogram_noise:  # one sample more or less changes one count by 1
        found |= _of_histograms(delta, histogram_noise)
    return found


def _of_histograms(delta: float, sigma: float) -> dict[str, Any]:
    return {"histogram_sigma": sigma, "histogram_epsilon_per_sample": epsilon_of(delta, sigma)}


def over_phases(summaries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """What phases over the same clients guarantee together, by the summary of each; None: none adds noise.

    Hand-overs of all phases compose, as those of one: ``1 / sigma^2 = sum of k / sigma^2``. One phase in which clients
    send something that no noise covers leaves nothing to guarantee.
    """
    told = {name: one["privacy"] for name, one in summaries.items() if "privacy" in one}
    if not told:
        return None
    delta = min(one["delta"] for one in told.values())
    found: dict[str, Any] = {"delta": delta, "hand_overs": sum(one["hand_overs"] for one in told.values())}
    if _having(told, "guarantee"):
        why = _uncovered(summaries, told)
        found |= {"guarantee": False, "why": why} if why else _of_weights_over(_having(told, "sigma"), delta)
    histograms = [(1, one["histogram_sigma"]) for one in _having(told, "histogram_sigma")]
    return found | (_of_histograms(delta, _together(histograms)) if histograms else {})


def _having(told: Mapping[str, dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [one for one in told.values() if key in one]


def _uncovered(summaries: Mapping[str, Mapping[str, Any]], told: Mapping[str, dict[str, Any]]) -> str:
    """Why phases guarantee nothing together; empty where they do."""
    for name, one in summaries.items():
        private = told.get(name, {})
        if one.get("bytes_up", 0) > 0 and "guarantee" not in private:
            return f"in the phase {name} clients hand over without noise"
        if not private.get("guarantee", True):
            return f"in the phase {name}, {private['why']}"
    return ""


def _of_weights_over(phases: list[dict[str, Any]], delta: float) -> dict[str, Any]:
    sigma = min(one["sigma"] for one in phases)
    beside = sorted({name for one in phases for name in one.get("not_covered", [])})
    return {
        "guarantee": True,
        "of": "the weights of one client",
        "sigma": sigma,
        "epsilon_per_hand_over": epsilon_of(delta, sigma),
        "epsilon": composed(delta, _together([(one["hand_overs"], one["sigma"]) for one in phases]), 1),
        **({"not_covered": beside} if beside else {}),
    }


def _together(uses: list[tuple[int, float]]) -> float:
    """The noise multiplier that one use would have, of so many uses with such multipliers; inf where there was none."""
    total = sum(times / sigma**2 for times, sigma in uses)
    return math.inf if total == 0 else 1.0 / math.sqrt(total)


def _of_weights(method: Method, arguments: dict[str, Any], delta: float, most: int) -> dict[str, Any]:
    sigma, clip = float(arguments["sigma"]), arguments["clip"]
    if clip is None:
        why = "changes are not clipped, so their sensitivity is not bounded: the noise guarantees nothing"
        return {"guarantee": False, "why": f"{why}; set hand_over_noise(clip=...)"}
    if sigma == 0.0:
        return {"guarantee": False, "why": "without noise (sigma=0) nothing is guaranteed"}
    once, whole = epsilon_of(delta, sigma), composed(delta, sigma, most)
    if math.isinf(whole):
        why = f"sigma={sigma:g} is so small that epsilon is above {LARGEST:g}: the noise guarantees nothing of use"
        return {"guarantee": False, "why": why}
    told = {
        "guarantee": True,
        "of": "the weights of one client",
        "sigma": sigma,
        "epsilon_per_hand_over": once,
        "epsilon": whole,
    }
    beside = sorted({name for name, _ in method.hooks("report")})
    return {**told, "not_covered": beside} if beside else told


def sentence(found: dict[str, Any]) -> str:
    """The account as people read it."""
    if "guarantee" not in found:
        text = ""
    elif not found["guarantee"]:
        text = f"none: {found['why']}."
    else:
        text = (
            f"({found['epsilon']:.3g}, {found['delta']:.2g}) for what one client hands over in {found['hand_overs']} "
            f"tasks, each ({found['epsilon_per_hand_over']:.3g}, {found['delta']:.2g})."
        )
        if "not_covered" in found:
            text += f" Not covered: what {', '.join(found['not_covered'])} sends."
    if "histogram_epsilon_per_sample" in found:
        text += f" Histogram: ({found['histogram_epsilon_per_sample']:.3g}, {found['delta']:.2g}) for one sample."
    return text.strip()
