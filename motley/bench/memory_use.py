"""How much memory objects hold, counted exactly: arrays, tensors and containers that can be reached from them."""

from __future__ import annotations

import gc
import resource
import sys
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_LEAVES = (ModuleType, type, BuiltinFunctionType, CodeType, str, bytes, int, float, bool, complex, type(None))


def held_bytes(*roots: Any) -> int:
    """Bytes of everything that can be reached; memory that several share counts once."""
    total = 0
    seen: set[int] = set()
    blocks: set[int] = set()
    stack: list[Any] = list(roots)
    while stack:
        one = stack.pop()
        if id(one) in seen or isinstance(one, _LEAVES):
            continue
        seen.add(id(one))
        if isinstance(one, np.ndarray | Tensor):
            address, size = _block(one)
            if address not in blocks:
                blocks.add(address)
                total += size
            continue
        total += sys.getsizeof(one)
        stack.extend(_inside(one))
    return total


def _block(array: Any) -> tuple[int, int]:
    """Where the memory behind an array or tensor begins, and its size."""
    if isinstance(array, Tensor):
        storage = array.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    while isinstance(array.base, np.ndarray):
        array = array.base
    if isinstance(array.base, Tensor):
        return _block(array.base)
    return array.__array_interface__["data"][0], array.nbytes


def _inside(one: Any) -> list[Any]:
    if isinstance(one, FunctionType):
        return [cell.cell_contents for cell in one.__closure__ or ()]
    if isinstance(one, nn.Module):
        return list(one.parameters()) + list(one.buffers())
    return gc.get_referents(one)


def resident_mb() -> float:
    """Memory of this process that is in use now."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 1e6
    return peak_mb("cpu")


def peak_mb(device: str) -> float:
    """The most memory this process has used; on a GPU, that of the device."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
