"""The whole local training of linear models as one kernel: each client is one block of threads that holds its weights
in registers from its first step to its last.

For a linear softmax model trained by plain SGD, with no part that changes the loss or the gradient, this is what the
general path computes, without a launch per operation. Everything else takes the general path.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from motley.client.optimizer import SGD
from motley.client.problems import Classification
from motley.client.trainer import Training
from motley.core.acceleration import available, declare
from motley.core.hooks import IN_STEPS
from motley.data.federated import FederatedData

declare("linear training on a GPU", "classification by a linear model and plain SGD")
LARGEST_INPUT, MOST_CLASSES, LARGEST_BATCH = 1024, 32, 64


def is_plain_linear(training: Training, data: FederatedData) -> bool:
    """Whether clients train a linear softmax model by SGD alone on samples that are ready as they lie."""
    if not (_by_plain_sgd(training) and _linear_softmax(training) and _ready(training, data)):
        return False
    return not any(training.method.has(hook) for hook in IN_STEPS)


def _by_plain_sgd(training: Training) -> bool:
    optimizer = training.optimizer
    return isinstance(optimizer, SGD) and optimizer.momentum == 0 and training.precision != "bf16"


def _linear_softmax(training: Training) -> bool:
    net = training.net
    if not getattr(net.module, "is_linear", False) or type(training.problem) is not Classification:
        return False
    return [slot.shape for slot in net.layout.slots] == [(net.n_classes, net.n_features), (net.n_classes,)]


def _ready(training: Training, data: FederatedData) -> bool:
    changed = training.augment is not None or data.dataset.scaling is not None or data.transforms
    return not changed and data.dataset.x.dtype == torch.float32


def fits(training: Training, data: FederatedData) -> bool:
    """Whether a run can be trained by this kernel."""
    net, batch = training.net, training.batch_size
    if not is_plain_linear(training, data):
        return False
    small = net.n_features <= LARGEST_INPUT and net.n_classes <= MOST_CLASSES and batch <= LARGEST_BATCH
    return small and data.dataset.x.is_cuda and available()


def plan(n_inputs: int, exact: bool) -> tuple[int, int]:
    """In how many groups the kernel takes its (padded) inputs, and its warps: more would leave a thread too few
    registers. Products take no fewer than 16 inputs; those in three parts ("exact") need fewest registers at 32."""
    groups = min(32 if exact else 8, n_inputs // 16)
    return groups, min(8, groups)


def train(
    training: Training, data: FederatedData, params: Tensor, lr: Tensor, steps: Tensor, batches: Any,
    groups: int | None = None, warps: int | None = None,
) -> Tensor:  # fmt: skip
    """Trains K clients in place (params [K, P]) on their minibatches (rows and mask [S, K, B]); losses [S, K].

    ``groups`` and ``warps`` (powers of two) replace what is chosen for the shapes.
    """
    import triton

    from motley.engine.kernels.descent_kernels import descend

    rows, mask = batches
    optimizer = training.optimizer
    assert isinstance(optimizer, SGD)
    n_inputs, classes, batch = training.net.n_features, training.net.n_classes, rows.shape[2]
    losses = torch.zeros(rows.shape[:2], device=params.device)
    precision = "tf32x3" if training.precision == "float32" else "tf32"
    wide, tall, deep = (max(16, triton.next_power_of_2(size)) for size in (n_inputs, classes, batch))
    planned = plan(wide, precision == "tf32x3")
    groups, warps = groups or planned[0], warps or planned[1]
    descend[(len(params),)](
        data.dataset.x.flatten(1), data.dataset.y[rows], rows, rows if mask is None else mask, params, steps, lr,
        losses, len(params), D=n_inputs, C=classes, B=batch, DECAY=optimizer.weight_decay, MASKED=mask is not None,
        PRECISION=precision, G=groups, W=wide // groups, BC=tall, BB=deep, num_warps=warps, num_stages=1,
    )  # fmt: skip
    return losses
