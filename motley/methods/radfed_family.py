"""Aggregation-delayed federated learning (Xue, Klabjan, Luo): RADFed, its importance sampling, and RADFed+.

RADFed is a protocol, so it takes any other part: ``radfed(S=15)+scaffold``. ``S`` is the number of redistributions
before an average (10 if not given), ``unequal`` what happens when fewer clients are active than models walk.
"""

from __future__ import annotations

from typing import Any

from motley.client.objective import proximal
from motley.core.errors import UnknownNameError
from motley.core.part import Method, Part, compose
from motley.core.ranges import Count, NotNegative, NotNegativeSchedule, PositiveShare, Share
from motley.methods.named import METHODS
from motley.protocol.redistribute import Unequal
from motley.server.aggregate import plain_mean
from motley.server.importance import importance
from motley.server.step import mix_with_previous, server_adagrad, server_adam, server_yogi

ADAPTIVE = {"adam": server_adam, "yogi": server_yogi, "adagrad": server_adagrad}


def _walking(name: str, S: Count | None, unequal: Unequal | None, *parts: Part) -> Method:
    """Plain averaging on the redistribute protocol; what is None is left to the protocol (S = 10, balanced)."""
    given: dict[str, Any] = {key: value for key, value in {"S": S, "unequal": unequal}.items() if value is not None}
    return compose(plain_mean(), *parts, protocol="redistribute", options=given, name=name)


@METHODS.add()
def radfed(S: Count | None = None, unequal: Unequal | None = None) -> Method:
    """Models walk over S fresh cohorts, then a plain average (RADFed, Algorithm 1)."""
    return _walking("radfed", S, unequal)


@METHODS.add()
def radfed_is(
    S: Count | None = None, gamma: PositiveShare = 0.9, floor: Share = 0.0, unequal: Unequal | None = None
) -> Method:
    """RADFed that prefers clients with large gradients after training (RADFed-IS, Algorithm 2)."""
    return _walking("radfed_is", S, unequal, importance(gamma=gamma, floor=floor))


@METHODS.add()
def radfedi(
    S: Count | None = None, gamma: PositiveShare = 0.9, floor: Share = 0.0, unequal: Unequal | None = None
) -> Method:
    """RADFed with importance sampling, under its name in RADFed+ (Algorithm 2, lines 8-11); the same as radfed_is."""
    return _walking("radfedi", S, unequal, importance(gamma=gamma, floor=floor))


@METHODS.add()
def radfedp(S: Count | None = None, rho: NotNegativeSchedule = 0.01, unequal: Unequal | None = None) -> Method:
    """RADFed with a proximal term towards the received model (RADFed+, ClientUpdate line 1)."""
    return _walking("radfedp", S, unequal, proximal(mu=rho))


@METHODS.add()
def radfedm(S: Count | None = None, alpha: Share = 0.9, unequal: Unequal | None = None) -> Method:
    """RADFed that mixes alpha * average + (1 - alpha) * old (RADFed+, Algorithm 2 line 14)."""
    return _walking("radfedm", S, unequal, mix_with_previous(alpha=1.0 - alpha, maximum=1.0))


@METHODS.add()
def radfeda(
    S: Count | None = None,
    optimizer: str = "adam",
    eta: NotNegativeSchedule = 0.01,
    tau: NotNegative = 1e-3,
    v0: NotNegative | None = None,
    beta1: Share = 0.9,
    unequal: Unequal | None = None,
) -> Method:
    """RADFed with an adaptive server step, adam, yogi or adagrad, on the average change (Algorithm 2 lines 15-17)."""
    if optimizer not in ADAPTIVE:
        raise UnknownNameError("adaptive server optimizer", optimizer, ADAPTIVE)
    return _walking("radfeda", S, unequal, ADAPTIVE[optimizer](lr=eta, beta1=beta1, tau=tau, v0=v0))
