"""The whole local training of small fully connected networks as one kernel: each client is one block of threads.

For networks of one or two hidden layers, trained by plain SGD with no other penalty than a pull towards the received
model, this is what the general path computes, without a launch per operation: a step takes as long as one block of
threads needs to read and write the weights, and as many clients as there are multiprocessors train side by side.
Everything else takes the general path.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from motley.client.optimizer import SGD
from motley.client.trainer import Training
from motley.core.kernels import available
from motley.core.network import Network
from motley.core.types import Client
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData
from motley.nets.mlp import MLP

_WITHIN_STEPS = ("trainable", "view", "logits", "gradient", "epoch")
MOST_WEIGHTS, WIDEST, MOST_CLASSES, MOST_ACTIVATIONS = 1 << 18, 256, 64, 1 << 12
MOST_BYTES = 1 << 30  # of inputs, made ready once
SETTINGS = {"BK": 32, "BM": 32, "num_warps": 8, "num_stages": 3}  # with more, a thread has too few registers


def fits(training: Training, data: FederatedData) -> bool:
    """Whether a run can be trained by this kernel."""
    optimizer, method, dataset = training.optimizer, training.method, data.dataset
    if not (on_gpu(dataset.x) and is_small(training.net, training.batch_size)):
        return False
    plain = isinstance(optimizer, SGD) and optimizer.momentum == 0 and training.precision != "bf16"
    pulled = [name for name, _ in method.hooks("penalty")] in ([], ["proximal"])
    ready = training.augment is None and not data.transforms and 4 * dataset.x.numel() <= MOST_BYTES
    return plain and pulled and ready and not any(method.has(hook) for hook in _WITHIN_STEPS)


def on_gpu(x: Tensor) -> bool:
    return x.is_cuda and available()


def is_small(net: Network, batch: int) -> bool:
    """Whether the kernel can take a network: it has one or two hidden layers and not too many weights."""
    module = net.module
    if not isinstance(module, MLP) or module.depth not in (1, 2):
        return False
    widest = max(_padded(layer.out_features) for layer in layers(module)[:-1])
    few = net.size <= MOST_WEIGHTS and net.n_classes <= MOST_CLASSES
    return few and widest <= WIDEST and widest * _padded(batch) <= MOST_ACTIVATIONS


def layers(module: MLP) -> list[torch.nn.Linear]:
    return [*(getattr(module, f"fc{i}") for i in range(1, module.depth + 1)), module.head]


def _padded(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


class Places(NamedTuple):
    """Where a model's tensors begin in a row in which each is aligned, and how long the row is."""

    begins: list[int]
    sizes: list[int]
    row: int

    @staticmethod
    def of(sizes: list[int]) -> Places:
        begins, row = [], 0
        for size in sizes:
            begins.append(row)
            row += -(-size // 16) * 16
        return Places(begins, sizes, row)

    def aligned(self, flat: Tensor) -> Tensor:
        out = flat.new_zeros(len(flat), self.row)
        for begin, size, piece in zip(self.begins, self.sizes, flat.split(self.sizes, 1), strict=True):
            out[:, begin : begin + size] = piece
        return out

    def flat(self, aligned: Tensor) -> Tensor:
        return torch.cat([aligned[:, i : i + size] for i, size in zip(self.begins, self.sizes, strict=True)], 1)


def ready_inputs(dataset: Dataset) -> Tensor:
    """All inputs as the network takes them, flat [N, D]."""
    return dataset.inputs(dataset.x).flatten(1).float().contiguous()


def train(
    training: Training, x: Tensor, y: Tensor, c: Client, lr: Tensor, steps: Tensor, batches: Any
) -> tuple[Tensor, Tensor]:
    """Trains K clients on their minibatches (rows and mask [S, K, B]): their models [K, P] and losses [S, K].

    ``x`` are inputs as `ready_inputs` gives them."""
    from motley.run.executors.fused_mlp_kernel import descend

    rows, mask = batches
    optimizer = training.optimizer
    assert isinstance(optimizer, SGD)
    assert isinstance(training.net.module, MLP)
    linear = layers(training.net.module)
    below, top, classes = linear[0].out_features, linear[-1].in_features, linear[-1].out_features
    places = Places.of([slot.size for slot in training.net.layout.slots])
    k, batch = len(c.params), rows.shape[2]
    models = places.aligned(c.params)
    pulled = training.method.has("penalty")
    starts = places.aligned(c.start if c.start.dim() == 2 else c.start[None]) if pulled else models
    mu = c.dials["proximal"]["mu"].to(models).expand(k).contiguous() if pulled else lr
    losses = torch.zeros(rows.shape[:2], device=models.device)
    bb, bh, bt, bc = (_padded(size) for size in (batch, below, top, classes))
    wide = max(bh, bt)
    scratch = torch.empty(k, 2, bb, wide, device=models.device)
    first, last = places.begins[:4], places.begins[-2:]
    descend[(k,)](
        x, y[rows], rows, rows if mask is None else mask, models, starts, steps, lr, mu, losses, scratch, k,
        ROW=places.row, START_ROW=places.row if len(starts) > 1 else 0, D=linear[0].in_features, H=below, T=top,
        C=classes, B=batch, W1=first[0], B1=first[1], W2=first[2], B2=first[3], W3=last[0], B3=last[1],
        DEEP=len(linear) == 3, DECAY=optimizer.weight_decay, PULLED=pulled, MASKED=mask is not None,
        PRECISION="tf32x3" if training.precision == "float32" else "tf32", BB=bb, BH=bh, BT=bt, BC=bc, BW=wide,
        **SETTINGS,
    )  # fmt: skip
    return places.flat(models), losses
