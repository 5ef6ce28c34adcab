"""What all Triton kernels share: whether they can run, how they take products, and clients along the first axis."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor


@cache
def available() -> bool:
    """Whether Triton can be used here."""
    if not torch.cuda.is_available():
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def usable(tensor: Tensor) -> bool:
    """Whether Triton's kernels for float32 can take a tensor."""
    return tensor.is_cuda and tensor.dtype == torch.float32 and available()


def product_precision() -> str:
    """How kernels take products: as torch is set to take matrix products."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


class Once(torch.autograd.Function):
    """A gradient that has no derivative of its own, as kernels' have not."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError("Second derivatives of batched layers are not available; take the loop executor.")


def front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """A tensor inside `vmap` with its client axis first; one without gets it by repetition, which copies nothing."""
    return tensor.unsqueeze(0).expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
