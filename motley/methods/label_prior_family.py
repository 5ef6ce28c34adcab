"""Methods that adjust the logits to a client's labels."""

from __future__ import annotations

from motley.client.logits import logit_calibration, relaxed_balanced_softmax, restricted_softmax
from motley.core.part import Method, compose
from motley.core.schedule import Schedule
from motley.methods.named import METHODS


@METHODS.add()
def bsm_fedavg() -> Method:
    """FedAvg with the balanced softmax (Chen and Chao 2022; ReBaFL, eq. 8)."""
    return compose(relaxed_balanced_softmax(eps=0.0), name="bsm_fedavg")


@METHODS.add()
def fedrs(alpha: Schedule = 0.5) -> Method:
    """Restricted softmax: smaller logits for classes a client has not (Li and Zhan 2021)."""
    return compose(restricted_softmax(alpha=alpha), name="fedrs")


@METHODS.add()
def fedlc(tau: Schedule = 1.0) -> Method:
    """Logit calibration by label counts (Zhang et al. 2022)."""
    return compose(logit_calibration(tau=tau), name="fedlc")
