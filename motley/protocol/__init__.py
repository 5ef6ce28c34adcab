"""Protocols: the order of a round, as async functions over a `Federation`."""

from motley.protocol import redistribute, synchronous
from motley.protocol.federation import PROTOCOLS, Arrival, Federation, Flight, Weights

__all__ = ["PROTOCOLS", "Arrival", "Federation", "Flight", "Weights", "redistribute", "synchronous"]
