"""Kernels that stand in for plain operations: what they offer to do, when they may, and what they all share.

Layers, losses and optimizers name an operation (`kernel_for`); whoever has a quicker way to compute it for many clients
at once has offered it under that name, with the condition under which it fits. Without offers, or inside
`without_kernels`, everything is computed by torch's own operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

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


def switched_off() -> bool:
    """Whether this is inside `without_kernels`."""
    return _off.get()


def usable(tensor: Tensor) -> bool:
    """Whether Triton's kernels are to take a tensor."""
    return not _off.get() and can_take(tensor)


def can_take(tensor: Tensor) -> bool:
    """Whether the kernels, which are for float32, can take a tensor."""
    return tensor.is_cuda and tensor.dtype == torch.float32 and available()


def product_precision() -> str:
    """How kernels take products: as torch is set to take matrix products."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


class Kernel(NamedTuple):
    """A quicker way to compute an operation for many clients at once."""

    fits: Callable[..., bool]  # whether it takes these arguments
    run: Callable[..., Any]
    accelerates: str  # which problem, layers and optimizer it is for, for people


_OFFERS: dict[str, Kernel] = {}
_DECLARED: dict[str, str] = {}


def offer(operation: str, kernel: Kernel) -> None:
    """From now on a kernel may stand in for an operation."""
    _OFFERS[operation] = kernel


def declare(path: str, accelerates: str) -> None:
    """Says of a quicker way that is no single operation for which problem, layers and optimizer it is."""
    _DECLARED[path] = accelerates


def offers() -> dict[str, str]:
    """What is accelerated: operation or path -> for which problem, layers and optimizer."""
    return dict(sorted({**{name: kernel.accelerates for name, kernel in _OFFERS.items()}, **_DECLARED}.items()))


def kernel_for(operation: str, *args: Any) -> Callable[..., Any] | None:
    """The kernel that computes an operation of these arguments, where there is one."""
    kernel = _OFFERS.get(operation)
    return kernel.run if kernel is not None and kernel.fits(*args) else None


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
