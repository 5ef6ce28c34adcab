"""Noise on weights before they are handed over, to the server or to the next client (GANDALF, section 3.5)."""

from __future__ import annotations

from torch import Tensor

from motley.core.keys import fold_in, normal
from motley.core.part import Part, part
from motley.core.ranges import NotNegative, Positive, PositiveShare
from motley.core.types import Client, Mine, Tree

WORD = 0x6E6F6973  # keeps these draws apart from those of the minibatches


@part("wire", neutral={"sigma": 0.0, "clip": None}, example={"sigma": 0.5, "clip": 0.2})
def hand_over_noise(
    sigma: NotNegative = 1e-5, sensitivity: Positive = 1.0, clip: Positive | None = None, delta: PositiveShare = 1e-5
) -> Part:
    """``w + N(0, (sigma s)^2 I)`` before a client hands its model over; s is the sensitivity (GANDALF, section 3.5).

    clip: the client's change is first shortened to this norm, ``delta * min(1, clip / ||delta||)``, and s is ``clip``:
    only then is the sensitivity bounded, and only then does the noise guarantee anything. delta: with which the summary
    of the run says what is guaranteed.
    """

    def encode(c: Client, me: Mine, payload: Tree) -> Tensor:
        change: Tensor = payload
        if clip is not None:
            change = change * (clip / change.norm().clamp_min(1e-30)).clamp_max(1.0)
        scale = sigma * (sensitivity if clip is None else clip)
        if scale == 0.0:
            return change
        return change + scale * normal(fold_in(c.key, WORD), tuple(change.shape))

    return Part(encode=encode)
