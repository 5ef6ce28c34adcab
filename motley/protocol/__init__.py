"""Protocols: the order of a round, as async functions over a `Federation`."""

from motley.core.discovery import import_room
from motley.protocol.federation import PROTOCOLS, Federation, Task

__all__ = ["PROTOCOLS", "Federation", "Task"]

import_room("motley.protocol")
