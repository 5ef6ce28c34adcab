"""What a step takes beside the clients, fetched by one Triton kernel where the plain way takes a dozen operations."""

from __future__ import annotations

import torch
from torch import Tensor

from motley.client.trainer import Training
from motley.core.acceleration import usable
from motley.core.types import Client
from motley.data.federated import FederatedData
from motley.engine.batched.minibatches import Table
from motley.engine.batched.steps import Inputs, augmented


def fits(data: FederatedData) -> bool:
    """Whether samples are ready as they lie on a GPU."""
    d = data.dataset
    ready = d.x.dtype == torch.float32 and d.scaling is None and not data.transforms and d.x.is_contiguous()
    return ready and d.y.dim() == 1 and usable(d.x)


def inputs(
    training: Training, data: FederatedData, c: Client, drawn: Table, number: Tensor, steps: Tensor, per_epoch: Tensor
) -> Inputs:
    """What step ``number`` [1] of stacked clients takes, augmented; convolutions get images with channels last."""
    d, augment = data.dataset, training.augment
    images = d.x.dim() == 4 and any(len(slot.shape) == 4 for slot in training.net.layout.slots)
    channels = d.x.shape[1] if images else 1
    moves = [] if augment is None else augment.moves
    black = None if augment is None else torch.tensor(augment.black, device=d.x.device)
    x, y, share, rate, epoch = fetch(
        d.x, d.y, *drawn, number, c.facts.lr, steps, per_epoch, c.key, black, channels, moves or []
    )
    shape = d.x.shape[1:]
    if images:
        x = x.view(*drawn.rows.shape, *shape[1:], channels).permute(0, 1, 4, 2, 3)
    else:
        x = x.view(*drawn.rows.shape, *shape)
    masked = drawn.mask is not None
    done = number.expand(len(drawn.rows))
    made = Inputs(x, y, drawn.mask, share if masked else None, rate.unsqueeze(-1), epoch, done)
    return augmented(training, made, c.key, number) if moves is None else made


@torch.library.custom_op("motley::fetch", mutates_args=())
def fetch(
    x: Tensor, y: Tensor, rows: Tensor, mask: Tensor | None, number: Tensor, lr: Tensor, steps: Tensor,
    per_epoch: Tensor, keys: Tensor, black: Tensor | None, channels: int, moves: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Samples [K, B, D] with their channels last, labels and shares [K, B], rates and epochs [K] of a step.

    Images are changed by ``moves`` (see `Augment.moves`), drawn from the clients' keys [K]; ``black`` [C] fills edges.
    """
    from motley.engine.kernels import fetch_kernels

    return fetch_kernels.fetch(x, y, rows, mask, number, lr, steps, per_epoch, keys, black, channels, moves)


@fetch.register_fake
def _(
    x: Tensor, y: Tensor, rows: Tensor, mask: Tensor | None, number: Tensor, lr: Tensor, steps: Tensor,
    per_epoch: Tensor, keys: Tensor, black: Tensor | None, channels: int, moves: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    share = x.new_empty(rows.shape if mask is not None else (0,))
    found, k = x.new_empty(*rows.shape, x[0].numel()), len(rows)
    return found, y.new_empty(rows.shape), share, x.new_empty(k), x.new_empty(k)


def record_(losses: Tensor, number: Tensor, loss: Tensor) -> None:
    """Writes the losses [K] of step ``number`` [1] into a table [S, K...], and goes on to the next step."""
    if usable(losses):
        from motley.engine.kernels import fetch_kernels

        fetch_kernels.record(losses, number, loss)
        return
    losses[:, : len(loss)].index_copy_(0, number, loss[None])
    number.add_(1)
