"""Credentials that end are renewed by the server's word before they do, so that work may last longer than they."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

RENEWED_AFTER = 2 / 3  # of their life


def claims_of(credentials: str) -> dict[str, Any]:
    """What signed claims say, unchecked: the broker checks them; empty where they are none."""
    try:
        body = credentials.split(".")[1]
        found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (IndexError, ValueError):
        return {}
    return found


class Renewal:
    """An agent's credentials: whether it is time for new ones, and taking them."""

    def __init__(self, credentials: str, changed: Callable[[str], None]) -> None:
        """``changed`` is told of new ones."""
        self.credentials, self._changed = credentials, changed

    @property
    def is_due(self) -> bool:
        told = claims_of(self.credentials)
        begin, end = float(told.get("iat", 0)), float(told.get("exp", 0))
        return bool(end) and time.time() > begin + RENEWED_AFTER * (end - begin)

    def take(self, credentials: str) -> None:
        """Takes credentials for the same key that last longer; anything else is left."""
        had, has = claims_of(self.credentials), claims_of(credentials)
        if has.get("sub") == had.get("sub") and has.get("exp", 0) > had.get("exp", 0):
            self.credentials = credentials
            self._changed(credentials)
