"""Shared by the tests of runs."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that was written; only a power cut could."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
