"""What a tensor stands for inside `torch.func`'s transforms."""

from __future__ import annotations

from torch import Tensor
from torch._C import _functorch


def is_vmapped(tensor: Tensor) -> bool:
    """True inside a `vmap` that maps over this tensor (also when a `grad` stands around or inside it)."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return False


def plain(tensor: Tensor) -> bool:
    """True where the tensor is itself, outside all of them."""
    return not _functorch.is_functorch_wrapped_tensor(tensor)
