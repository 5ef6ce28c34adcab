"""Methods that send less."""

from __future__ import annotations

from motley.core.part import Method, compose
from motley.core.ranges import PositiveShare
from motley.methods.named import METHODS
from motley.server.aggregate import plain_mean
from motley.server.sparse import sparse_ternary


@METHODS.add()
def stc(share: PositiveShare = 0.0025, share_down: PositiveShare = 0.0025) -> Method:
    """Sparse ternary compression with memories at both ends, clients counted alike (Sattler et al. 2019)."""
    return compose(sparse_ternary(share=share, share_down=share_down), plain_mean(), name="stc")
