"""Protocols: the order of a round, as async functions over a `Federation`."""

from motley.protocol import asynchronous, late, redistribute, semi, synchronous, tiers
from motley.protocol.federation import PROTOCOLS, Arrival, Federation, Flight, Weights

__all__ = [
    "PROTOCOLS",
    "Arrival",
    "Federation",
    "Flight",
    "Weights",
    "asynchronous",
    "late",
    "redistribute",
    "semi",
    "synchronous",
    "tiers",
]
