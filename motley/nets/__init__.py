"""Models, how they are computed, and what they cost."""

from motley.nets import cnn, linear, mlp
from motley.nets.conv import Conv2d, conv_formulation, max_pool
from motley.nets.registry import MODELS, Split, model
from motley.nets.zoo import build, make

__all__ = [
    "MODELS",
    "Conv2d",
    "Split",
    "build",
    "cnn",
    "conv_formulation",
    "linear",
    "make",
    "max_pool",
    "mlp",
    "model",
]
