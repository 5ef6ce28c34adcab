"""Named methods, each a composition of parts."""

from motley.methods import ama_fes, baselines, logits, radfed, rebafl
from motley.methods.registry import METHODS, make_method

__all__ = ["METHODS", "ama_fes", "baselines", "logits", "make_method", "radfed", "rebafl"]
