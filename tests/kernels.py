"""Where Triton kernels are tested: on a GPU, or with ``TRITON_INTERPRET=1`` in Triton's interpreter."""

import importlib.util
import os

import pytest

from motley.core.kernels import available

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if available() else "cpu"
needs_kernels = pytest.mark.skipif(not (available() or INTERPRETED), reason="needs a CUDA device with Triton")
