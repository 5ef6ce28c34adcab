"""Named methods, each a composition of parts."""

from motley.methods import baselines, system
from motley.methods.registry import METHODS, make_method

__all__ = ["METHODS", "baselines", "make_method", "system"]
