"""Executors: who trains the clients of a simulation."""

from motley.run.executors import loop, pool
from motley.run.executors.base import EXECUTORS, Executor, FactsRow, Job

__all__ = ["EXECUTORS", "Executor", "FactsRow", "Job", "loop", "pool"]
