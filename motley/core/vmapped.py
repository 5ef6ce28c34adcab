"""Whether a tensor stands for one of many inside `torch.func.vmap`."""

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
