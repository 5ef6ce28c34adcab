"""What all Triton kernels share: whether they can run, how they take products, and clients along the first axis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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


_off: ContextVar[bool] = ContextVar("kernels_off", default=False)


@contextmanager
def without_kernels() -> Iterator[None]:
    """Inside the block everything is computed by torch's own operations."""
    token = _off.set(True)
    try:
        yield
    finally:
        _off.reset(token)


def usable(tensor: Tensor) -> bool:
    """Whether Triton's kernels are to take a tensor."""
    return not _off.get() and can_take(tensor)


def can_take(tensor: Tensor) -> bool:
    """Whether the kernels, which are for float32, can take a tensor."""
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


def by_client(tensor: Tensor) -> Tensor:
    """A tensor [K, ...] that is contiguous for each client; clients may lie apart, as in a table of all parameters."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()
