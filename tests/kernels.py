"""Where Triton kernels are tested: on a GPU, or with ``TRITON_INTERPRET=1`` in Triton's interpreter."""

import importlib.util
import os
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from motley.core.acceleration import available

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if available() else "cpu"
needs_kernels = pytest.mark.skipif(not (available() or INTERPRETED), reason="needs a CUDA device with Triton")


class Launched(TorchDispatchMode):
    """Notes the operations that are computed inside the block, in order; views compute nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))
