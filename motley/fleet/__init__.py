"""Fleets: how fast, how far, how available and how reliable every client is."""
