"""Logit adjustment, by hand: ReBaFL eq. 8-13, FedRS, FedLC, label smoothing."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from motley.client.logits import label_smoothing, logit_calibration, relaxed_balanced_softmax, restricted_softmax
from motley.core.errors import ConflictError
from motley.core.part import compose
from motley.core.types import Batch, Output
from motley.methods import make_method
from motley.runtime.launch import Run
from tests.equations.small import adjusted, client, small_experiment, small_network

Z = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.5, -1.0, 0.0, 2.0]])
Y = torch.tensor([0, 1])
COUNTS = [3.0, 1.0, 0.0, 0.0]


def test_relaxed_balanced_softmax_by_hand() -> None:
    """Eq. 9 and 10 with eps = 0.2: p = (0.65, 0.25, 0.05, 0.05)."""
    z = adjusted(make_method("relaxed_balanced_softmax(eps=0.2)"), Z, COUNTS)
    e = math.e
    first = -math.log(0.65 * e / (0.65 * e + 0.25 * e**2 + 0.05 * e**3 + 0.05 * e**4))
    below = 0.65 * e**0.5 + 0.25 * e**-1 + 0.05 + 0.05 * e**2
    second = -math.log(0.25 * e**-1 / below)
    assert cross_entropy(z, Y, reduction="none").tolist() == pytest.approx([first, second], rel=1e-5)


def test_balanced_softmax_masks_missing_classes() -> None:
    """Eq. 8: p = (0.75, 0.25, 0, 0); no class without samples is ever pushed (eq. 13), and nothing is NaN."""
    raw = Z.clone().requires_grad_()
    losses = cross_entropy(adjusted(make_method("bsm_fedavg"), raw, COUNTS), Y, reduction="none")
    e = math.e
    assert losses.tolist() == pytest.approx(
        [
            -math.log(0.75 * e / (0.75 * e + 0.25 * e**2)),
            -math.log(0.25 * e**-1 / (0.75 * e**0.5 + 0.25 * e**-1)),
        ],
        rel=1e-5,
    )
    (grad,) = torch.autograd.grad(losses.sum(), raw)
    assert torch.isfinite(grad).all()
    assert (grad[:, 2:] == 0).all()
    assert (grad[:, :2] != 0).all()


def test_one_class_alone_gives_no_loss_when_balanced_but_some_when_relaxed() -> None:
    """The example of section 4.1."""
    y = torch.zeros(2, dtype=torch.int64)
    assert float(cross_entropy(adjusted(make_method("bsm_fedavg"), Z, [5.0, 0, 0, 0]), y)) == 0.0
    assert float(cross_entropy(adjusted(make_method("relaxed_balanced_softmax"), Z, [5.0, 0, 0, 0]), y)) > 0.01


@pytest.mark.parametrize("spec", ["relaxed_balanced_softmax(eps=1)", "fedrs(alpha=1)", "fedlc(tau=0)"])
def test_neutral_logits_are_exact(spec: str) -> None:
    assert torch.equal(adjusted(make_method(spec), Z, COUNTS), Z)


def test_restricted_softmax_by_hand() -> None:
    z = adjusted(make_method("fedrs(alpha=0.5)"), Z, COUNTS)
    assert torch.equal(z, torch.tensor([[1.0, 2.0, 1.5, 2.0], [0.5, -1.0, 0.0, 1.0]]))


def test_logit_calibration_by_hand() -> None:
    """n = (16, 1, 0, 81): offsets -tau * (1/2, 1, inf, 1/3)."""
    z = adjusted(make_method("fedlc(tau=0.6)"), Z, [16.0, 1.0, 0.0, 81.0])
    probability = torch.softmax(z, -1)[0]
    score = torch.tensor([1.0 - 0.3, 2.0 - 0.6, 4.0 - 0.2]).exp()
    assert torch.allclose(probability[[0, 1, 3]], score / score.sum())
    assert float(probability[2]) == 0.0


def test_calibration_of_equal_counts_is_the_balanced_softmax() -> None:
    counts = [7.0, 7.0, 0.0, 0.0]
    calibrated, balanced = (torch.softmax(adjusted(make_method(m), Z, counts), -1) for m in ("fedlc", "bsm_fedavg"))
    assert torch.allclose(calibrated, balanced)


def test_more_outputs_than_classes_in_the_data() -> None:
    assert torch.allclose(
        torch.softmax(adjusted(make_method("bsm_fedavg"), Z, [3.0, 1.0]), -1),
        torch.softmax(adjusted(make_method("bsm_fedavg"), Z, COUNTS), -1),
    )


def test_label_smoothing_equals_smoothed_targets() -> None:
    method = compose(label_smoothing(eps=0.1))
    net = small_network()
    c = client(method, net, net.initial(), COUNTS)
    ((name, penalty),) = method.hooks("penalty")
    for mask in (None, torch.tensor([1.0, 0.0])):
        extra = penalty(c, c.mine(name), Batch(torch.zeros(2, 6), Y, mask), Output(torch.zeros(2, 5), Z))
        rows = slice(None) if mask is None else slice(1)
        expected = cross_entropy(Z[rows], Y[rows], label_smoothing=0.1)
        assert float(cross_entropy(Z[rows], Y[rows]) + extra) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    "part",
    [
        "relaxed_balanced_softmax(eps=1)",
        "restricted_softmax(alpha=1)",
        "logit_calibration(tau=0)",
        "label_smoothing(eps=0)",
    ],
)
def test_neutral_runs_equal_fedavg_bit_for_bit(part: str) -> None:
    plain = Run(small_experiment("fedavg")).go()
    assert torch.equal(Run(small_experiment(part)).go().params, plain.params)


def test_two_corrections_of_the_same_counts_are_refused() -> None:
    for one, other in (
        (relaxed_balanced_softmax(), logit_calibration()),
        (restricted_softmax(), relaxed_balanced_softmax()),
        (logit_calibration(), restricted_softmax()),
    ):
        with pytest.raises(ConflictError, match="twice"):
            compose(one, other)
