"""Models, how they are computed, and what they cost."""

from motley.nets import cnn, linear, lstm, mlp, resnet
from motley.nets.conv import Conv2d, conv_formulation, max_pool
from motley.nets.cost import Cost, cost_of, flops, flops_of_mask
from motley.nets.registry import MODELS, Split, model
from motley.nets.zoo import build, make

__all__ = [
    "MODELS",
    "Conv2d",
    "Cost",
    "Split",
    "build",
    "cnn",
    "conv_formulation",
    "cost_of",
    "flops",
    "flops_of_mask",
    "linear",
    "lstm",
    "make",
    "max_pool",
    "mlp",
    "model",
    "resnet",
]
