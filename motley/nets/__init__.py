"""Models, how they are computed, and what they cost."""

from motley.core.bill import Cost
from motley.nets import cnn, gan, lstm, mlp, resnet, transformers
from motley.nets import logistic as linear
from motley.nets.conv import Conv2d, conv_formulation, max_pool
from motley.nets.cost import cost_of, flops, flops_of_mask
from motley.nets.models import MODELS, Split, model
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
    "gan",
    "linear",
    "lstm",
    "make",
    "max_pool",
    "mlp",
    "model",
    "resnet",
    "transformers",
]
