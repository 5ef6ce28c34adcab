"""Benchmarks: every number is a ratio measured in one run."""
