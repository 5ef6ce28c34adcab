"""Fleets: how fast, how far, how available and how reliable every client is."""

from motley.fleet import availability, devices, links, presets  # each registers its layers
from motley.fleet.fleet import Fate, Fates, Fleet
from motley.fleet.layers import FLEETS, make_fleet
from motley.fleet.timing import Timing, task_timing

__all__ = [
    "FLEETS",
    "Fate",
    "Fates",
    "Fleet",
    "Timing",
    "availability",
    "devices",
    "links",
    "make_fleet",
    "presets",
    "task_timing",
]
