"""The mean cross-entropy of many clients and its gradient, as one Triton kernel."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from motley.core.acceleration import Kernel, Once, front, offer, usable
from motley.core.types import Batch
from motley.core.vmapped import is_vmapped

LARGEST_TILE = 1 << 13  # logits of one client


def fits(logits: Tensor, batch: Batch) -> bool:
    """Whether the kernel takes the logits [B, C] of one of many clients on a GPU."""
    small = logits.dim() == 2 and logits.shape[0] * logits.shape[1] <= LARGEST_TILE and logits.dtype == torch.float32
    known = batch.mask is None or batch.share is not None
    return small and known and batch.y.dim() == 1 and usable(logits) and is_vmapped(logits)


def mean_loss(logits: Tensor, batch: Batch) -> Tensor:
    """The mean cross-entropy of one client's logits [B, C] over the samples that count."""
    return cast(tuple[Tensor, Tensor], ClientLoss.apply(logits, batch.y, batch.share))[0]


@torch.library.custom_op("motley::cross_entropy", mutates_args=())
def cross_entropy(logits: Tensor, y: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
    """The loss [K] and its gradient [K, B, C] from logits, labels [K, B] and the samples' weights (equal if None)."""
    from motley.engine.kernels import cross_entropy_kernels

    return cross_entropy_kernels.forward(logits, y, share)


@cross_entropy.register_fake
def _(logits: Tensor, y: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
    return logits.new_empty(len(logits)), logits.new_empty(logits.shape)


class _Scaled(Once):
    """The gradient of a loss times that of whatever was made of it; it has no derivative of its own."""

    @staticmethod
    def forward(slope: Tensor, grad: Tensor) -> Tensor:
        return slope * grad

    @staticmethod
    def vmap(info: Any, in_dims: Any, slope: Tensor, grad: Tensor) -> tuple[Tensor, int]:
        k = info.batch_size
        return front(slope, in_dims[0], k) * front(grad, in_dims[1], k).view(k, 1, 1), 0


class ClientLoss(torch.autograd.Function):
    """The mean cross-entropy of one client's logits [B, C], with a fast rule for `vmap`."""

    @staticmethod
    def forward(logits: Tensor, y: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
        loss, slope = cross_entropy(logits[None], y[None], None if share is None else share[None])
        return loss[0], slope[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return _Scaled.apply(slope, grads[0]), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, logits: Tensor, y: Tensor, share: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        k = info.batch_size
        weights = None if share is None else front(share, in_dims[2], k).contiguous()
        return cross_entropy(
            front(logits, in_dims[0], k).contiguous(), front(y, in_dims[1], k).contiguous(), weights
        ), (0, 0)


offer("cross_entropy", Kernel(fits, mean_loss, "the loss of classification, any layers, on a GPU"))
