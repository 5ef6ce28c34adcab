"""Logit adjustment: what the loss makes of a client's label counts.

All remedies are one mechanism: ``scale_c * z[c] + offset_c`` before the cross-entropy, with other numbers per class.

=========================  =========================  ==============================================
part                       scale_c                    offset_c
=========================  =========================  ==============================================
relaxed_balanced_softmax   1                          log((1 - eps) * n_c / n + eps / C)
restricted_softmax         alpha where n_c = 0        0
logit_calibration          1                          -tau * n_c ** (-1/4), masked where n_c = 0
=========================  =========================  ==============================================

Offsets are shifted so that the largest is 0, which leaves the loss alone and makes the neutral settings exact.
A masked class gets a large negative finite offset: its probability is 0 and nothing ever becomes NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from motley.core.part import Part, part
from motley.core.ranges import NotNegativeSchedule, ShareSchedule
from motley.core.types import Batch, Client, Mine, Output

MASKED = -1e9
"""The offset of a class that must not be predicted."""

LABELS = ("labels",)

_TWICE = "both correct the logits for the client's label counts, which would count them twice"


def label_counts(c: Client, n_classes: int) -> Tensor:
    """Samples per class [C] of this client, for as many classes as the model has outputs."""
    labels = c.facts.labels
    return pad(labels, (0, n_classes - labels.shape[-1])) if labels.shape[-1] < n_classes else labels


def shifted(offsets: Tensor) -> Tensor:
    """Offsets [C] whose largest is 0; those below `MASKED` are raised to it."""
    return (offsets - offsets.max()).clamp_min(MASKED)


def prior_offsets(counts: Tensor, eps: Tensor | float) -> Tensor:
    """``log p`` with the smoothed prior ``p = (1 - eps) * n_c / n + eps / C`` (ReBaFL, eq. 10): [C], largest 0."""
    prior = (1.0 - eps) * counts / counts.sum().clamp_min(1.0) + eps / counts.shape[-1]
    tiny = torch.finfo(prior.dtype).tiny
    return shifted(torch.where(prior > 0, prior.clamp_min(tiny).log(), torch.full_like(prior, MASKED)))


@part("objective", neutral={"eps": 1.0}, example={"eps": 0.01})
def relaxed_balanced_softmax(eps: NotNegativeSchedule = 0.01) -> Part:
    """Multiplies exp(logit) by the client's smoothed class prior (ReBaFL, eq. 9 and 10).

    ``loss = -log(p[y] exp(z[y]) / sum_c p[c] exp(z[c]))`` with ``p = (1 - eps) * n_c / n + eps / C``. eps = 0 is the
    balanced softmax (classes the client has not are masked), eps = 1 the plain one. Inference uses the plain softmax.
    """

    def logits(c: Client, me: Mine, batch: Batch, logits: Tensor) -> Tensor:
        return logits + prior_offsets(label_counts(c, logits.shape[-1]), me.dials["eps"])

    twice = {"restricted_softmax": _TWICE, "logit_calibration": _TWICE}
    return Part(logits=logits, needs=LABELS, dials={"eps": eps}, refuses=twice)


@part("objective", neutral={"alpha": 1.0}, example={"alpha": 0.5})
def restricted_softmax(alpha: NotNegativeSchedule = 0.5) -> Part:
    """Shrinks the logits of classes the client has not: ``alpha * z[c]`` where n_c = 0 (FedRS, Li and Zhan 2021)."""

    def logits(c: Client, me: Mine, batch: Batch, logits: Tensor) -> Tensor:
        present = label_counts(c, logits.shape[-1]) > 0
        return logits * torch.where(present, torch.ones_like(logits[0]), me.dials["alpha"].to(logits.dtype))

    return Part(logits=logits, needs=LABELS, dials={"alpha": alpha}, refuses={"logit_calibration": _TWICE})


@part("objective", neutral={"tau": 0.0}, example={"tau": 1.0})
def logit_calibration(tau: NotNegativeSchedule = 1.0) -> Part:
    """Subtracts ``tau * n_c ** (-1/4)`` from each logit (FedLC, Zhang et al. 2022).

    A class the client has not would get minus infinity; it is masked. With equally many samples of each of its classes
    a client's loss is therefore that of the balanced softmax.
    """

    def logits(c: Client, me: Mine, batch: Batch, logits: Tensor) -> Tensor:
        counts = label_counts(c, logits.shape[-1])
        strength = me.dials["tau"]
        absent = torch.where(strength > 0, MASKED, 0.0).to(counts.dtype)
        return logits + shifted(torch.where(counts > 0, -strength * counts.clamp_min(1.0) ** -0.25, absent))

    return Part(logits=logits, needs=LABELS, dials={"tau": tau})


@part("objective", neutral={"eps": 0.0}, example={"eps": 0.1})
def label_smoothing(eps: ShareSchedule = 0.1) -> Part:
    """Targets ``(1 - eps) * onehot(y) + eps / C`` instead of one-hot ones.

    Cross-entropy with these targets is the usual one plus ``eps * (z[y] - mean_c z[c])``, because the normaliser
    cancels; so it composes with any offsets. The mean runs over the raw logits, masked classes included.
    """

    def penalty(c: Client, me: Mine, batch: Batch, out: Output) -> Tensor:
        z = out.logits
        gap = z.gather(-1, batch.y.unsqueeze(-1)).squeeze(-1) - z.mean(-1)
        return me.dials["eps"] * batch.mean(gap)

    return Part(penalty=penalty, needs=LABELS, dials={"eps": eps})
