"""Runs: recipes, phases, the virtual clock, checkpoints, records."""
